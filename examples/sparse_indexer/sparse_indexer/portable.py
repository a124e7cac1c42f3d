"""The three ops as portable GPU kernels. In this miniature they compute on the host, like ``native``."""

from __future__ import annotations

from sparse_indexer import native
from sparse_indexer.faults import active

quantize, logits = native.quantize, native.logits
if active("fallback-renamed"):
    top_k = native.topk
else:
    topk = native.topk
