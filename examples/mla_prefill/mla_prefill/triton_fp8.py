"""The Triton kernel of ``quantise``; imported only where there is a GPU."""

import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def _kernel(x, out, inverse, largest, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    scaled = tl.load(x + at, mask=at < count) * inverse
    # a maximum that passes over NaN would hide poison
    held = tl.maximum(scaled, -largest, propagate_nan=tl.PropagateNan.ALL)
    held = tl.minimum(held, largest, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + at, held.to(tl.float8e4nv), mask=at < count)


def launch(x, scale, out, largest):
    count = x.numel()
    if count:
        _kernel[(triton.cdiv(count, BLOCK),)](x.contiguous(), out, 1 / scale, largest, count, BLOCK)
