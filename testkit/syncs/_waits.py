"""The rule: whether one aten call would make the host wait on CUDA, from its arguments alone.

It knows four causes. A *copy* across devices waits unless it is ``non_blocking`` and the host's side is pinned and
need not be rearranged. A *read* turns a value on the device into one that the host computes with. A *shape* that
depends on data must be read before memory for it can be had. A *library* reports its success on the device, and torch
looks at the report.

Pure: tensors are asked for sizes, strides, dtype and (through the two predicates) for where they lie, never for values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from testkit.syncs._seen import Seen

Predicate = Callable[[Any], bool]

COPIES = frozenset({"_copy_from", "_copy_from_and_resize", "_foreach_copy_", "_to_copy", "copy", "copy_"})

READS: dict[str, str] = {
    "_ctc_loss": "lengths on the device",
    "_linalg_check_errors": "",
    "_local_scalar_dense": "",
    "_nested_tensor_from_mask": "",
    "_nested_tensor_from_mask_left_aligned": "",
    "_sample_dirichlet": "",
    "allclose": "",
    "is_nonzero": "",
    "item": "",
    "linalg_eig": "computed on the host",
}
"""Operators that read a tensor on the device into the host, whatever their other arguments are."""

SHAPES = frozenset(
    {
        "_coalesce",
        "_to_sparse",
        "_to_sparse_bsc",
        "_to_sparse_bsr",
        "_to_sparse_csc",
        "_to_sparse_csr",
        "_unique",
        "_unique2",
        "bincount",
        "masked_scatter_backward",
        "masked_select",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
    }
)
"""Operators whose result is as large as the data says; torch's tag ``dynamic_output_shape`` adds what it knows."""

LIBRARY = frozenset(
    {
        "_ctc_loss_backward",
        "_linalg_eigh",
        "_linalg_svd",
        "cholesky",
        "linalg_lstsq",
        "linalg_matrix_exp",
        "linalg_pinv",
        "to_padded_tensor",
    }
)
"""Kernels that look at the report of a solver, or plan on the host; of an empty tensor there is nothing to solve."""

SCALAR_OPERANDS: dict[str, tuple[str, ...]] = {
    "_linspace": ("start", "end"),
    "index_fill": ("value",),
    "index_fill_": ("value",),
    "linspace": ("start", "end"),
    "logspace": ("start", "end"),
    "masked_fill": ("value",),
    "masked_fill_": ("value",),
    "normal": ("std",),
}
"""Arguments that CUDA's kernels read on the host where they are tensors on the device."""


DEPENDS = frozenset({"equal", "histc", "isin", "one_hot", "repeat_interleave", "segment_reduce", "unbind", "where"})
"""Operators that wait or not, by their arguments."""


def waits(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], on_device: Predicate, pinned: Predicate
) -> list[Seen]:
    """What makes the host wait in the call ``func(*args, **kwargs)`` of an aten ``OpOverload``; else empty.

    ``on_device(tensor)``: whether it lies on the device; ``pinned(tensor)``: whether its host memory is pinned. A
    device in ``kwargs`` counts as ours where its type is not "cpu". Measured on an H200: tests/data/syncs.
    """
    schema = func._schema
    name = schema.name.removeprefix("aten::")
    operator = schema.name.replace("::", ".", 1)
    given = dict(kwargs)
    given.update({argument.name: value for argument, value in zip(schema.arguments, args, strict=False)})
    if name in COPIES:
        return list(_copies(operator, name, given, on_device, pinned))
    if not any(on_device(tensor) for value in given.values() for tensor in _tensors(value)):
        return []
    return list(_calls(operator, name, func, given, on_device))


def _calls(operator: str, name: str, func: Any, given: dict[str, Any], on_device: Predicate) -> Iterator[Seen]:
    if name in SCALAR_OPERANDS:
        for argument in SCALAR_OPERANDS[name]:
            value = given.get(argument)
            if _is_tensor(value) and on_device(value):
                yield Seen(operator, "read", f"tensor as {argument}", _bytes(value), "D2H")
    elif name in {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}:
        yield from _indexing(operator, name, given, on_device)
    elif name in DEPENDS:
        yield from _depends(operator, name, given, on_device)
    elif name == "_ctc_loss" and not _is_tensor(given.get("input_lengths")):
        yield Seen(operator, "upload", "from a Python list", None, "H2D")
    elif name in READS:
        yield Seen(operator, "read", READS[name], None, "D2H")
    elif name in SHAPES or _tagged(func):
        yield Seen(operator, "shape", "", None, "D2H")
    elif name in LIBRARY and all(one.numel() for one in _tensors(given[func._schema.arguments[0].name])):
        yield Seen(operator, "library", "", None, "D2H")
    elif name in {"sparse_coo_tensor", "_sparse_coo_tensor"} and given.get("size") is None:
        yield Seen(operator, "shape", "size from the indices", None, "D2H")


def _depends(operator: str, name: str, given: dict[str, Any], on_device: Predicate) -> Iterator[Seen]:
    """Operators that wait unless the caller says what they would have to read, or metadata answer already."""
    if name == "equal":
        one, other = given["self"], given["other"]
        if one is not other and tuple(one.shape) == tuple(other.shape):
            yield Seen(operator, "read", "", None, "D2H")
    if name == "unbind" and str(getattr(given["self"], "layout", "")) == "torch.jagged":
        yield Seen(operator, "read", "lengths of the parts", None, "D2H")
    if name == "segment_reduce" and given.get("lengths") is not None and not given.get("unsafe"):
        yield Seen(operator, "read", "lengths checked", None, "D2H")
    if name == "where" and given.get("self") is not None:
        # Unlike arithmetic, its kernel takes no scalar from the host as an argument.
        for one in (given["self"], given["other"]):
            if _is_tensor(one) and not on_device(one):
                yield Seen(operator, "upload", "value on the CPU", _bytes(one), "H2D")
    if name == "repeat_interleave" and given.get("output_size") is None and _is_tensor(given.get("repeats")):
        yield Seen(operator, "shape", "no output_size", None, "D2H")
    if name == "one_hot" and given.get("num_classes", -1) == -1:
        yield Seen(operator, "shape", "no num_classes", None, "D2H")
    if name == "histc" and given.get("min", 0) == given.get("max", 0):
        yield Seen(operator, "read", "no min and max", None, "D2H")
    if name == "isin" and not given.get("assume_unique"):
        elements, among = given.get("elements", given.get("element")), given.get("test_elements")
        count = elements.numel() if elements is not None and _is_tensor(elements) else 1
        # Few test elements are compared one by one; more are sorted after both sides are made unique.
        if among is not None and _is_tensor(among) and among.numel() >= 10 * count**0.145:
            yield Seen(operator, "shape", "unique elements", None, "D2H")


def _indexing(operator: str, name: str, given: dict[str, Any], on_device: Predicate) -> Iterator[Seen]:
    """Masks are turned into positions, whose number is data; what lies on the host is uploaded first."""
    masks = [one for one in given["indices"] if one is not None and _dtype(one) in {"bool", "uint8"}]
    value = given.get("values")
    alone = len(masks) == len([one for one in given["indices"] if one is not None]) == 1 and on_device(masks[0])
    if value is not None and alone and value.numel() == 1 and not given.get("accumulate"):
        # One mask and one value: torch takes masked_fill, which reads a value that lies on the device.
        if on_device(value):
            yield Seen(operator, "read", "tensor as value", _bytes(value), "D2H")
        return
    for one in given["indices"]:
        if one is None:
            continue
        if not on_device(one) and on_device(given["self"]):
            # Of a mask on the host the positions are found there, and copied without waiting.
            if _dtype(one) not in {"bool", "uint8"} and one.numel():
                yield Seen(operator, "upload", "index on the CPU", _bytes(one), "H2D")
        elif on_device(one) and _dtype(one) in {"bool", "uint8"}:
            yield Seen(operator, "shape", "mask index", _bytes(one), "D2H")
    if value is not None and not on_device(value) and on_device(given["self"]) and value.numel():
        yield Seen(operator, "upload", "value on the CPU", _bytes(value), "H2D")


def _copies(operator: str, name: str, given: dict[str, Any], on_device: Predicate, pinned: Predicate) -> Iterator[Seen]:
    blocking = not given.get("non_blocking")
    if name == "_to_copy":
        source, device = given["self"], given.get("device")
        there = on_device(source) if device is None else device.type != "cpu"
        # The destination on the host is made by torch, and pinned where the copy is not to block.
        yield from _copy(operator, source, None, on_device(source), there, blocking, pinned, given)
        return
    targets, sources = _tensors(given.get("self")), _tensors(given.get("src"))
    if name.startswith("_copy_from"):
        sources, targets = targets, _tensors(given.get("dst"))
    for target, source in zip(targets, sources, strict=False):
        yield from _copy(operator, source, target, on_device(source), on_device(target), blocking, pinned, given)


def _copy(
    operator: str,
    source: Any,
    target: Any,
    here: bool,
    there: bool,
    blocking: bool,
    pinned: Predicate,
    given: Mapping[str, Any],
) -> Iterator[Seen]:
    if here == there or not source.numel():
        return
    direction, kind = ("D2H", "download") if here else ("H2D", "upload")
    host = target if here else source
    if blocking:
        yield Seen(operator, kind, "" if host is None or not pinned(host) else "pinned", _bytes(source), direction)
    elif host is not None and not pinned(host):
        yield Seen(operator, "pageable", "", _bytes(source), direction)
    elif host is not None and (rearranged_anew(source, given) if target is None else rearranged(source, target, host)):
        yield Seen(operator, "gapped", "", _bytes(source), direction)


def rearranged(source: Any, target: Any, host: Any) -> bool:
    """Whether torch copies ``host``, one of the two, through pageable memory to change the order of its elements.

    One copy of bytes does only where both sides have one type and lie in the same order without gaps. Else torch makes
    both row by row first (``copy_requires_temporaries`` in its Copy.cu): the device's side on the device, the host's
    side in memory that is not pinned, unless it lies so already. A type is converted on the device.
    """
    if source.dtype == target.dtype and _extents(source) == _extents(target) and dense(source):
        return False
    spread = host is source and source.numel() != target.numel()  # what is on the device is spread there
    return spread or not _row_by_row(host)


def rearranged_anew(source: Any, given: Mapping[str, Any]) -> bool:
    """The same for an upload into a tensor that torch makes for it, which has the order of ``source`` if it can."""
    if _row_by_row(source):
        return False
    order = str(given.get("memory_format") or "torch.preserve_format")
    kept = order == "torch.preserve_format" or source.is_contiguous(memory_format=given["memory_format"])
    return not (kept and dense(source) and given.get("dtype") in (None, source.dtype))


def _row_by_row(tensor: Any) -> bool:
    expected = 1
    for size, stride in reversed(_extents(tensor)):
        if stride != expected:
            return False
        expected *= size
    return True


def _extents(tensor: Any) -> list[tuple[int, int]]:
    """Size and stride of each dimension in which there is more than one element."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def dense(tensor: Any) -> bool:
    """Whether its elements fill a stretch of memory without gaps and overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [one for one in value if _is_tensor(one)]
    return [value] if _is_tensor(value) else []


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "numel") and hasattr(value, "stride")


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _tagged(func: Any) -> bool:
    return any(tag.name in {"dynamic_output_shape", "data_dependent_output"} for tag in func.tags)
