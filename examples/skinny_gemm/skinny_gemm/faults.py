"""Planted faults, one at a time, chosen by the environment variable SKINNY_GEMM_FAULT; none without it."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

VARIABLE = "SKINNY_GEMM_FAULT"
KERNELS = ("wvsplitkrc", "wvsplitk", "wvsplitk_fp8", "llmm1")


@dataclass(frozen=True)
class Fault:
    """One planted bug: which cases of which kernel's test it spoils, and what its author got wrong.

    ``when`` names the parameters that it depends on, with the sizes before scaling. The kernels do not read
    it: each has its own, real mistake. A test compares the two.
    """

    name: str
    kernel: str
    when: Callable[..., bool]
    text: str

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the kernel's test that the fault depends on; n, k and m are one, except for wvsplitkrc."""
        names = list(inspect.signature(self.when).parameters)
        if self.kernel != "wvsplitkrc":
            names = ["n,k,m" if name in ("n", "k", "m") else name for name in names]
        return tuple(dict.fromkeys(names))

    @property
    def strength(self) -> int:
        """How many axes must meet for the fault to show."""
        return len(self.axes)

    def spoils(self, case: Mapping[str, Any]) -> bool:
        """Whether ``case``, by argument name, holds the fault's combination."""
        return self.when(**{name: case[name] for name in inspect.signature(self.when).parameters})


FAULTS = (
    Fault(
        "krc-seventh-shard-lost",
        "wvsplitkrc",
        lambda k: k == 3080,
        "the reduction is unrolled for six shards",
    ),
    Fault(
        "krc-row-before-full-lost",
        "wvsplitkrc",
        lambda n: n == 31,
        "in a bucket that lacks one row the guard masks the last real one too",
    ),
    Fault(
        "krc-matrix-bias-one-row",
        "wvsplitkrc",
        lambda bias_mode: bias_mode == 2,
        "each row group adds the first of its bias rows to all of them",
    ),
    Fault(
        "krc-tail-masked-by-stride",
        "wvsplitkrc",
        lambda k, padded_a: k % 512 != 0 and padded_a,
        "the load of the last, partial shard is masked by the row stride, so it reads the padding",
    ),
    Fault(
        "krc-full-bucket-bias",
        "wvsplitkrc",
        lambda n, bias_mode: n in (16, 32, 64, 128) and bias_mode == 1,
        "in a full bucket the last row takes the bias of a masked lane, which is zero",
    ),
    Fault(
        "krc-bfloat16-odd-tail",
        "wvsplitkrc",
        lambda k, dtype: k in (2888, 3080) and dtype is torch.bfloat16,
        "bfloat16 is loaded in pairs and the last, unpaired element of K is lost",
    ),
    Fault(
        "krc-wide-bucket-partial-tile",
        "wvsplitkrc",
        lambda n, m: n > 64 and m % 64 != 0,
        "in the bucket of 128 the last lane of a partial tile stores its neighbour's column",
    ),
    Fault(
        "krc-wide-weights-saturate",
        "wvsplitkrc",
        lambda m, xnorm: m >= 640 and not xnorm,
        "from eight tiles on the weights saturate at 0.5, which only raw values reach",
    ),
    Fault(
        "krc-launch-entry-tile",
        "wvsplitkrc",
        lambda n, m: n == 103 and m == 144,
        "one entry of the launch table has a tile too few",
    ),
    Fault(
        "krc-launch-entry-shard",
        "wvsplitkrc",
        lambda n, k: n == 29 and k == 3072,
        "one entry of the launch table has a shard too few",
    ),
    Fault(
        "krc-padded-bias-row-off",
        "wvsplitkrc",
        lambda dtype, padded_a, bias_mode: dtype is torch.bfloat16 and padded_a and bias_mode == 2,
        "the bfloat16 path counts the padding as a row when it looks up the matrix bias",
    ),
    Fault(
        "krc-narrow-bucket-saturates",
        "wvsplitkrc",
        lambda n, dtype, xnorm: n <= 16 and dtype is torch.float16 and not xnorm,
        "the float16 path of the bucket of 16 lets activations saturate at 0.5",
    ),
    Fault(
        "krc-padded-skips-small",
        "wvsplitkrc",
        lambda padded_a, bias_mode, xnorm: padded_a and bias_mode == 0 and xnorm,
        "without bias, shards of a padded input that hold small values only are taken for padding",
    ),
    Fault(
        "krc-corner-counted-twice",
        "wvsplitkrc",
        lambda n, k, m: 32 < n <= 64 and k == 2888 and m == 272,
        "in one launch shape two units both add the last shard of the last tile",
    ),
    Fault(
        "krc-launch-entry-bfloat16",
        "wvsplitkrc",
        lambda n, m, dtype: n == 117 and m == 256 and dtype is torch.bfloat16,
        "one entry of the bfloat16 launch table has a shard too few",
    ),
    Fault(
        "wv-odd-column-lost",
        "wvsplitk",
        lambda m: m % 2 != 0,
        "columns are stored in pairs and the unpaired last one is lost",
    ),
    Fault(
        "wv-tail-masked-by-stride",
        "wvsplitk",
        lambda k, padded_b: k % 512 != 0 and padded_b,
        "the load of a partial shard of the weights is masked by the row stride",
    ),
    Fault(
        "wv-padded-bias-twice",
        "wvsplitk",
        lambda padded_a, bias_mode: padded_a and bias_mode == 2,
        "the padded path has already put the matrix bias into the sums",
    ),
    Fault(
        "wv-single-row-bfloat16-lanes",
        "wvsplitk",
        lambda n, dtype: n == 1 and dtype is torch.bfloat16,
        "the single-row bfloat16 path uses the first of each pair of lanes only",
    ),
    Fault(
        "wv-padded-third-row",
        "wvsplitk",
        lambda n, padded_a: n == 3 and padded_a,
        "rows are fetched in pairs and a padded third row reads the second again",
    ),
    Fault(
        "wv-padded-float16-saturates",
        "wvsplitk",
        lambda dtype, padded_b, xnorm: dtype is torch.float16 and padded_b and not xnorm,
        "the float16 path for padded weights lets them saturate at 0.5",
    ),
    Fault(
        "wv-dense-bias-skips-small",
        "wvsplitk",
        lambda padded_b, bias_mode, xnorm: not padded_b and bias_mode == 1 and xnorm,
        "with dense weights and a vector bias, shards of small activations are taken for padding",
    ),
    Fault(
        "wv-both-padded-first-lanes",
        "wvsplitk",
        lambda dtype, padded_a, padded_b: dtype is torch.bfloat16 and padded_a and padded_b,
        "with both inputs padded the second half of the bfloat16 lanes reads the first half again",
    ),
    Fault(
        "wv-second-row-bias-twice",
        "wvsplitk",
        lambda n, k, dtype, bias_mode: n == 2 and k > 512 and dtype is torch.float16 and bias_mode == 1,
        "with several shards the second float16 row takes the vector bias once more",
    ),
    Fault(
        "fp8-shard-counter-wraps",
        "wvsplitk_fp8",
        lambda k: k >= 65536,
        "the shard counter of the reduction is too short for the largest K",
    ),
    Fault(
        "fp8-padded-unbiased-scale",
        "wvsplitk_fp8",
        lambda padded_b, biased: padded_b and not biased,
        "the unbiased entry point for padded weights forgets their scale",
    ),
    Fault(
        "fp8-bfloat16-partial-tile",
        "wvsplitk_fp8",
        lambda m, dtype: m % 64 != 0 and dtype is torch.bfloat16,
        "the last lane of a partial bfloat16 tile stores its neighbour's column",
    ),
    Fault(
        "fp8-third-row-bias",
        "wvsplitk_fp8",
        lambda n, biased: n == 3 and biased,
        "rows are handled in pairs and the third row gets no bias",
    ),
    Fault(
        "fp8-single-row-last-shard",
        "wvsplitk_fp8",
        lambda n, k, padded_b: n == 1 and k > 512 and padded_b,
        "a single row against padded weights stops one shard early",
    ),
    Fault(
        "fp8-padded-float16-saturates",
        "wvsplitk_fp8",
        lambda dtype, padded_a, xnorm: dtype is torch.float16 and padded_a and not xnorm,
        "the float16 path for a padded input clips its codes at 32",
    ),
    Fault(
        "fp8-padded-skips-small",
        "wvsplitk_fp8",
        lambda dtype, padded_b, xnorm: dtype is torch.bfloat16 and padded_b and xnorm,
        "the bfloat16 path for padded weights takes shards of small codes for padding",
    ),
    Fault(
        "fp8-tail-masked-by-stride",
        "wvsplitk_fp8",
        lambda k, padded_a, biased: k % 512 != 0 and padded_a and not biased,
        "the unbiased path masks the load of a partial shard by the row stride",
    ),
    Fault(
        "fp8-one-shard-second-row",
        "wvsplitk_fp8",
        lambda n, k, dtype, biased: n == 2 and k == 512 and dtype is torch.bfloat16 and biased,
        "with one shard the second bfloat16 row gets no bias",
    ),
    Fault(
        "llmm1-sixteenth-row-lost",
        "llmm1",
        lambda dtype, rows_per_block: dtype is torch.bfloat16 and rows_per_block == 16,
        "a bfloat16 block stores fifteen of its sixteen rows",
    ),
    Fault(
        "llmm1-short-k-rows-swapped",
        "llmm1",
        lambda k, rows_per_block: k < 512 and rows_per_block == 2,
        "when K fills no shard, blocks of two rows store them in the wrong order",
    ),
    Fault(
        "llmm1-last-block-repeats",
        "llmm1",
        lambda k, rows_per_block: k == 2048 and rows_per_block == 4,
        "with four shards the last block of four rows stores the one before it again",
    ),
    Fault(
        "llmm1-float16-block-order",
        "llmm1",
        lambda k, dtype, rows_per_block: k >= 4096 and dtype is torch.float16 and rows_per_block == 8,
        "from eight shards on, float16 blocks of eight rows are stored one block too far",
    ),
)

_NAMES = frozenset(fault.name for fault in FAULTS)


def active(name: str) -> bool:
    """Whether the environment switches the fault ``name`` on."""
    chosen = os.environ.get(VARIABLE, "")
    if not chosen:
        return False
    if chosen not in _NAMES:
        raise ValueError(unknown(chosen))
    return chosen == name


def unknown(chosen: str) -> str:
    """What to tell someone who asks for a fault that does not exist."""
    near = difflib.get_close_matches(chosen, sorted(_NAMES), n=1, cutoff=0.0)
    return f"{VARIABLE}={chosen} is no planted fault; the nearest is {near[0]}"
