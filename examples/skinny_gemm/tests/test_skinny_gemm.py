"""The four skinny GEMM kernels against a float64 reference, over the shapes and options that are in use.

The parameter values are those of a suite of 11,040 cases before it was thinned by hand
(vllm-project/vllm pull request 51877).
"""

import pytest
import torch
from skinny_gemm import fits_the_device, llmm1, wvsplitk, wvsplitk_fp8, wvsplitkrc
from skinny_gemm.device import DEVICE_TILE
from skinny_gemm.problems import SCALE_A, SCALE_B, assert_within_bound, problem

pytestmark = pytest.mark.skip_global_cleanup

DTYPES = [torch.float16, torch.bfloat16]

N_KRC = [13, 16, 17, 25, 29, 31, 32, 41, 51, 64, 71, 81, 91, 103, 117, 128]
K_KRC = [2880, 2880 + 8, 3072, 3072 + 8]
M_KRC = [128, 128 + 16, 256, 256 + 16, 640, 640 + 16]

NKM_SPLITK = [
    (1, 32, 16),
    (1, 64, 64),
    (2, 256, 256),
    (3, 1024, 1024),
    (4, 4096, 4096),
    (4, 4096, 4096 + 1),
    (4, 4096 + 16, 4096),
    (4, 4096 + 16, 4096 + 1),
    (1, 9216, 512),
    (2, 10240, 1024),
    (4, 16384, 8192),
    (4, 32768, 8192),
    (4, 32768, 8192 + 1),
    (4, 32768 + 16, 8192),
    (4, 32768 + 16, 8192 + 1),
    (1, 64, 8),
    (2, 128, 8),
    (4, 256, 8),
]

NKM_FP8 = [
    (1, 16, 16),
    (1, 32, 32),
    (1, 64, 64),
    (1, 64, 64 + 16),
    (1, 64 + 16, 64),
    (1, 64 + 16, 64 + 16),
    (4, 64, 64),
    (4, 64, 64 + 16),
    (4, 64 + 16, 64),
    (4, 64 + 16, 64 + 16),
    (2, 512, 512),
    (3, 512, 512),
    (3, 512, 512 + 16),
    (4, 512, 512),
    (3, 2048, 2048),
    (3, 2048, 2048 + 16),
    (4, 2048 + 16, 2048),
    (4, 2048 + 16, 2048 + 16),
    (4, 4096, 4096),
    (4, 16400, 2048),
    (4, 16400, 2048 + 16),
    (1, 14336, 1024),
    (2, 24576, 2048),
    (4, 32768, 28672),
    (4, 65536, 28672),
    (4, 65536, 28672 + 16),
    (4, 65536 + 16, 28672),
    (4, 65536 + 16, 28672 + 16),
]

NKM_LLMM1 = [
    (1, 8, 16),
    (1, 32, 64),
    (1, 128, 256),
    (1, 512, 1024),
    (1, 2048, 4096),
    (1, 6144, 1024),
    (1, 8192, 2048),
    (1, 4096, 8192),
]


@pytest.mark.pairwise(where=fits_the_device)
@pytest.mark.parametrize("n", N_KRC)
@pytest.mark.parametrize("k", K_KRC)
@pytest.mark.parametrize("m", M_KRC)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padded_a", [False, True])
@pytest.mark.parametrize("bias_mode", [0, 1, 2])
@pytest.mark.parametrize("xnorm", [False, True])
def test_wvsplitkrc(n, k, m, dtype, padded_a, bias_mode, xnorm):
    if not fits_the_device(n, k, m):
        pytest.skip("too large for the device")
    case = problem(n, k, m, dtype, padded_a=padded_a, bias_mode=bias_mode, xnorm=xnorm)
    assert_within_bound(wvsplitkrc(case.a, case.b, case.bias), case)


@pytest.mark.pairwise
@pytest.mark.parametrize("n,k,m", NKM_SPLITK)  # noqa: PT006  # one string, as suites write it
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padded_a", [False, True])
@pytest.mark.parametrize("padded_b", [False, True])
@pytest.mark.parametrize("bias_mode", [0, 1, 2])
@pytest.mark.parametrize("xnorm", [False, True])
def test_wvsplitk(n, k, m, dtype, padded_a, padded_b, bias_mode, xnorm):
    case = problem(n, k, m, dtype, padded_a=padded_a, padded_b=padded_b, bias_mode=bias_mode, xnorm=xnorm)
    assert_within_bound(wvsplitk(case.a, case.b, case.bias), case)


@pytest.mark.pairwise
@pytest.mark.parametrize("n,k,m", NKM_FP8)  # noqa: PT006  # one string, as suites write it
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padded_a", [False, True])
@pytest.mark.parametrize("padded_b", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("xnorm", [False, True])
def test_wvsplitk_fp8(n, k, m, dtype, padded_a, padded_b, biased, xnorm):
    case = problem(n, k, m, dtype, padded_a=padded_a, padded_b=padded_b, bias_mode=int(biased), xnorm=xnorm, fp8=True)
    out = wvsplitk_fp8(case.a, case.b, SCALE_A, SCALE_B, dtype, case.bias)
    assert_within_bound(out, case)


@pytest.mark.pairwise
@pytest.mark.parametrize("n,k,m", NKM_LLMM1)  # noqa: PT006  # one string, as suites write it
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows_per_block", [2, 4, 8, 16])
def test_llmm1(n, k, m, dtype, rows_per_block):
    # a tile as wide as the device's keeps m a multiple of every rows_per_block
    case = problem(n, k, m, dtype, tile=DEVICE_TILE)
    assert_within_bound(llmm1(case.a, case.b, rows_per_block), case)
