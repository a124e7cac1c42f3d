"""Automatic mixed precision on the simulated device: which operators run in the small type, which in float32.

The lists are those of torch's documentation of autocast on CUDA (https://docs.pytorch.org/docs/stable/amp.html).
"""

from __future__ import annotations

from typing import Any

_SMALL = (
    "addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input linalg_multi_dot linear matmul mm mv prelu "
    "scaled_dot_product_attention"
)
_SINGLE = (
    "acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cumprod cumsum "
    "erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log10 log1p log2 log_softmax.int "
    "margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss_nd norm.Scalar "
    "norm.ScalarOpt_dim nuclear_norm pdist poisson_nll_loss pow.Tensor_Scalar pow.Tensor_Tensor prod prod.dim_int "
    "reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softmax.int softplus sum sum.dim_IntList tan "
    "triplet_margin_loss"
)
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot cat stack"


def register(torch: Any, name: str) -> list[Any]:
    """Kernels for the autocast key of the backend ``name``; they live as long as what is returned."""
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def casts(operator: Any, choose: Any) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            dtype = choose([one for one in _leaves([*args, *kwargs.values()]) if _floating(one)])
            with torch._C._ExcludeDispatchKeyGuard(below):
                return operator(*_cast(args, dtype), **{key: _cast(value, dtype) for key, value in kwargs.items()})

        return kernel

    def widest(tensors: list[Any]) -> Any:
        return torch.float32 if any(one.dtype == torch.float32 for one in tensors) else None

    library, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, choose in (
        (_SMALL, lambda _: torch.get_autocast_dtype(name)),
        (_SINGLE, lambda _: torch.float32),
        (_WIDEST, widest),
    ):
        for one in names.split():
            packet, _, overload = one.partition(".")
            if hasattr(torch.ops.aten, packet):
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(one, casts(operator, choose), "AutocastPrivateUse1")
    return [library, rest]


def _leaves(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _leaves(one)] if isinstance(value, (list, tuple)) else [value]


def _floating(value: Any) -> bool:
    """Whether autocast casts it: tensors on the device of a floating type, other than float64."""
    return hasattr(value, "_inner") and value.is_floating_point() and value.element_size() < 8


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(one, dtype) for one in value)
    return value.to(dtype) if dtype is not None and _floating(value) and value.dtype != dtype else value
