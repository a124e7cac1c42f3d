"""``parametrize``: one decorator for a whole product, thinned when tests are generated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from testkit.errors import KitWarning
from testkit.pairwise._axes import in_order, make_axes, named_values
from testkit.pairwise._engine import Effort
from testkit.pairwise._ids import axis_ids
from testkit.pairwise._plan import Case
from testkit.pairwise._predicates import Predicate

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

F = TypeVar("F", bound=Callable[..., Any])


def parametrize(
    axes: Mapping[str, Iterable[Any]],
    *,
    strength: int | None = None,
    full: str | Iterable[str] = (),
    where: Predicate | Iterable[Predicate] | None = None,
    keep: Case | Iterable[Case] = (),
    seed: int | None = None,
    effort: Effort | None = None,
) -> Callable[[F], F]:
    """Mark a test function or class with all ``axes`` at once, thinned like stacked decorators with ``pairwise``.

    ``axes``: from a name as in ``parametrize``, ``"n"`` or ``"n,k,m"``, to its values or ``pytest.param``s; the
    other arguments as in the ``pairwise`` marker. Ids are ``name=value``, tell ``1`` from ``"1"`` and ``None`` from
    ``"None"``, and a value's id stays the same whatever else the axis holds. The full product is never built.
    """
    import pytest

    full, where, keep = _again(full), _again(where), _again(keep)
    params = {name: in_order(values, name) for name, values in named_values(axes)}
    made = make_axes({name: [_value(p) for p in listed] for name, listed in params.items()})
    marks = []
    for axis, listed in zip(made, params.values(), strict=True):
        ids, notes = axis_ids(axis, [_given_id(p) for p in listed])
        for note in notes:
            warnings.warn(f"pairwise: {note}", KitWarning, stacklevel=2)
        values = [
            pytest.param(
                *([value] if len(axis.argnames) == 1 else value),  # type: ignore[misc]  # checked by make_axes
                marks=_marks(p),
                id=text,
            )
            for value, p, text in zip(axis.values, listed, ids, strict=True)
        ]
        marks.append(pytest.mark.parametrize(",".join(axis.argnames), values))
    marks.append(pytest.mark.pairwise(strength=strength, full=full, where=where, keep=keep, seed=seed, effort=effort))

    def decorate(target: F) -> F:
        for mark in marks:
            target = mark(target)
        return target

    return decorate


def _param(value: Any) -> ParameterSet | None:
    from _pytest.mark.structures import ParameterSet

    return value if isinstance(value, ParameterSet) else None


def _value(value: Any) -> Any:
    param = _param(value)
    if param is None:
        return value
    return param.values[0] if len(param.values) == 1 else tuple(param.values)


def _given_id(value: Any) -> str | None:
    param = _param(value)
    return None if param is None or not isinstance(param.id, str) else param.id


def _marks(value: Any) -> Any:
    param = _param(value)
    return () if param is None else param.marks


def _again(value: Any) -> Any:
    """What the marker may read once for each function."""
    return list(value) if isinstance(value, Iterator) else value
