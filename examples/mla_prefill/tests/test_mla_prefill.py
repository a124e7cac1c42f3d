"""The backend and its builder, without their ``__init__``; on the CPU, or on a GPU where there is one."""

from pathlib import Path

import pytest
import torch
from mla_prefill.backend import Backend, Config, MetadataBuilder
from mla_prefill.faults import VARIABLE
from mla_prefill.fp8 import LARGEST, quantise

from testkit.kernels import (
    assert_bits_equal,
    assert_matches,
    assert_replays,
    assert_stream_safe,
    bare,
    calibrate,
    fake_streams,
    guarded,
    layouts,
    namespace,
    poisoned,
    sizes_around_powers_of_two,
    stub_drift,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODEL = Path(__file__).parent / "fp8_errors.json"
HEADS, LATENT, WIDTH, BLOCK, BLOCKS, MOST = 2, 32, 16, 4, 24, 64
LENGTHS = [(40,), (7, 33), (1, 16, 21)]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


TO_KEY, TO_VALUE = normal(2, HEADS, LATENT, WIDTH, seed=1000) / LATENT**0.5


def make_backend(dtype="fp8", side=None):
    return bare(
        Backend,
        config=namespace(Config, cache={"dtype": dtype}),
        to_key=TO_KEY,
        to_value=TO_VALUE,
        scales=[2**-5, 2**-6, 2**-7],
        side=side,
        workspace=torch.empty(2, HEADS, MOST, WIDTH, device=DEVICE),
    )


def make_builder():
    config = namespace(Config, cache={"block_size": BLOCK})
    return bare(MetadataBuilder, config=config, buffer=torch.full((3, MOST), -1, device=DEVICE))


def make_inputs(lengths, seed, padded=None):
    """Query, cache and metadata; blocks of the cache in any order, of which some belong to nobody."""
    blocks = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed)).reshape(len(lengths), -1).tolist()
    meta = make_builder().build(list(lengths), blocks, padded or sum(lengths))
    q = normal(len(meta.slots), HEADS, WIDTH, seed=seed).bfloat16()
    return q, normal(BLOCKS * BLOCK, LATENT, seed=seed + 1).bfloat16(), meta


def prefill(q, cache, meta, dtype="fp8"):
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    make_backend(dtype).forward(q, cache, meta, out)
    return out


def reference(q, cache, meta):
    """Request by request, in float64, and without fp8; padding is left out."""
    outputs = []
    for request in range(int(meta.request.max()) + 1):
        mine = meta.request == request
        latent = cache[meta.slots[mine]].double()
        scores = q[mine].double().transpose(0, 1) @ (latent @ TO_KEY.double()).mT / WIDTH**0.5
        weights = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
        outputs.append((weights @ (latent @ TO_VALUE.double())).transpose(0, 1))
    return torch.cat(outputs)


def faulty(fault):
    def kernel(*inputs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, fault)
            return prefill(*inputs)

    return kernel


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("padding", [0, 1, 24])
@pytest.mark.parametrize("layout", layouts("contiguous", "strided", "padded", "transposed", "misaligned"))
def test_it_attends_as_in_float64(dtype, lengths, padding, layout):
    q, cache, meta = make_inputs(lengths, seed=100, padded=sum(lengths) + padding)
    out = prefill(layout(q), cache, meta, dtype)[: sum(lengths)]
    expected = reference(q, cache, meta)
    assert_matches(out, expected, model=MODEL if dtype == "fp8" else None, dtype=torch.bfloat16, device=DEVICE)


@pytest.mark.parametrize("size", sizes_around_powers_of_two(128, 512))
def test_fp8_holds_its_nearest_value_and_the_largest_one_beyond_its_range(size):
    x = normal(size) * 300
    held = guarded(size, torch.float8_e4m3fn, device=DEVICE, inputs=x).run(lambda out: quantise(x, 0.5, out))
    assert_matches(held, (x.double() / 0.5).clamp(-LARGEST, LARGEST))
    on_cpu = torch.empty(size, dtype=held.dtype)
    assert_bits_equal(held.cpu(), quantise(x.cpu(), 0.5, on_cpu))  # Triton's, where there is a GPU


def test_nothing_stale_reaches_the_output():
    q, cache, meta = make_inputs((7, 20), seed=101, padded=32)
    backend, right = make_backend(), prefill(q, cache, meta)
    padding, unused = meta.request < 0, torch.ones(len(cache), dtype=torch.bool, device=DEVICE)
    unused[meta.slots[~padding]] = False
    with poisoned(backend.workspace, (cache, unused), (q, padding)) as poison:
        out = torch.empty_like(q)
        backend.forward(q, cache, meta, out)
    poison.assert_absent(out, unwritten=padding[:, None, None])
    assert_bits_equal(out[~padding], right[~padding])


@pytest.mark.parametrize("gap", [0, 8])
def test_only_rows_of_tokens_are_written(gap):
    q, cache, meta = make_inputs((7, 20), seed=102, padded=32)
    padding = (meta.request < 0)[:, None, None]
    stride, inputs = (HEADS * WIDTH + gap, WIDTH, 1), (q, cache, meta)
    with guarded(q.shape, q.dtype, device=DEVICE, stride=stride, inputs=inputs, unwritten=padding) as out:
        make_backend().forward(q, cache, meta, out)


def test_the_builder_forgets_the_batch_before():
    builder, blocks = make_builder(), [[0, 1, 2], [5, 4, 3]]
    fresh = make_builder().build([3, 2], blocks, 16)
    builder.build([9, 4], blocks, 16)
    for found, expected in zip(builder.build([3, 2], blocks, 16), fresh, strict=True):
        assert_bits_equal(found, expected)


def test_a_replay_follows_lengths_blocks_and_values():
    backend = make_backend()

    def replayed(seed):
        q, cache, meta = make_inputs([(7, 20), (15, 9)][seed], seed, padded=32)
        return q, cache, meta, torch.zeros_like(q)

    assert_replays(backend.forward, replayed)


def test_values_may_be_projected_on_a_second_stream():
    q, cache, meta = make_inputs((7, 25), seed=103)
    with fake_streams():
        parallel, serial = make_backend(side=torch.cuda.Stream()), make_backend()

        def run(backend):
            out = torch.zeros_like(q)
            backend.forward(q, cache, meta, out)
            return out

        report = assert_stream_safe(lambda: run(parallel), lambda: run(serial), workspaces=[parallel.workspace])
    assert report.streams == 2


def test_the_stubs_fit_their_classes():
    stubs = [(make_backend(), "forward"), (make_builder(), "build")]
    assert [drift for stub, method in stubs for drift in stub_drift(stub, runs=[method])] == []


if __name__ == "__main__":
    faults = {fault: faulty(fault) for fault in ("diagonal-dropped", "value-scale-lost")}
    calibrate(prefill, make_inputs, reference, range(20), LENGTHS, mutants=faults).save(MODEL)
