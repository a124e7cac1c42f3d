"""Axes of a model: names, values kept as they are, and which positions hold the same value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Any

from testkit.errors import PairwiseError


@dataclass(frozen=True)
class Axis:
    """One independent choice of a case.

    ``name`` as in ``parametrize``: ``"n"`` or ``"n,k,m"``; ``values`` in the order given, objects untouched. For
    several argument names each value is a sequence with one entry per name.
    """

    name: str
    argnames: tuple[str, ...]
    values: tuple[object, ...]

    @cached_property
    def first_positions(self) -> tuple[int, ...]:
        """For each different value, in order, the position where it stands first."""
        return tuple(dict.fromkeys(self.first_position_of))

    @cached_property
    def first_position_of(self) -> tuple[int, ...]:
        """For each position the first position that holds the same value."""
        seen: dict[object, int] = {}
        return tuple(seen.setdefault(identity(value), position) for position, value in enumerate(self.values))

    @cached_property
    def repeated(self) -> list[int]:
        """Positions whose value stands earlier in the axis too."""
        return [position for position, first in enumerate(self.first_position_of) if position != first]

    def column(self, argname: str) -> Sequence[object]:
        """The values of the argument ``argname``, position by position."""
        if len(self.argnames) == 1:
            return self.values
        return [self.argument(argname, position) for position in range(len(self.values))]

    def argument(self, argname: str, position: int) -> object:
        """The value that the argument ``argname`` has at ``position``."""
        value = self.values[position]
        if len(self.argnames) == 1:
            return value
        return value[self.argnames.index(argname)]  # type: ignore[index]  # checked by make_axis

    def arguments(self, position: int) -> dict[str, object]:
        """The arguments that ``position`` sets, by name."""
        return {argname: self.argument(argname, position) for argname in self.argnames}


def make_axis(name: str, values: Iterable[object]) -> Axis:
    """An axis from a name as in ``parametrize`` and its values; sets are put into one fixed order."""
    argnames = tuple(part.strip() for part in name.split(",") if part.strip()) if isinstance(name, str) else ()
    if not argnames or not all(part.isidentifier() for part in argnames):
        raise PairwiseError(
            f"axis name {name!r} is no argument name", fix='name axes as parametrize does: "n" or "n,k,m"'
        )
    listed = tuple(in_order(values, name))
    if not listed:
        raise PairwiseError(f"axis {name!r} has no values", fix="give it at least one value, or remove the axis")
    if len(argnames) > 1:
        for position, value in enumerate(listed):
            if type(value) is tuple and len(value) == len(argnames):
                continue
            if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) != len(argnames):
                raise PairwiseError(
                    f"axis {name!r} needs {len(argnames)} entries a value, position {position} holds {value!r}",
                    fix=f"write each value as a tuple of {len(argnames)}",
                )
    return Axis(name, argnames, listed)


def in_order(values: Iterable[object], name: str) -> list[object]:
    """The values of an axis as a list; a set's in the one order that they fix themselves."""
    if isinstance(values, (list, tuple)):
        return list(values)
    if not isinstance(values, Iterable):
        raise PairwiseError(f"axis {name!r} has {values!r}, not values", fix="give a list of values")
    if isinstance(values, Set) and not hasattr(values, "mapping"):  # the keys of a mapping have an order
        return in_fixed_order(values, name)
    return list(values)


def named_values(axes: Mapping[str, Iterable[object]]) -> list[tuple[str, Iterable[object]]]:
    """The entries of an ``axes`` argument."""
    if not isinstance(axes, Mapping):
        raise PairwiseError(
            f"axes is {type(axes).__name__}, not a mapping", fix='write axes as {"n": [1, 2], "k,m": [(3, 4)]}'
        )
    return list(axes.items())


def make_axes(axes: Mapping[str, Iterable[object]]) -> list[Axis]:
    """All axes of a model, checked together."""
    made = [make_axis(name, values) for name, values in named_values(axes)]
    if not made:
        raise PairwiseError("a model needs at least one axis", fix="give a mapping from names to values")
    owner: dict[str, str] = {}
    for axis in made:
        for argname in axis.argnames:
            if argname in owner or axis.argnames.count(argname) > 1:
                raise PairwiseError(
                    f"argument {argname!r} stands twice, in axes {owner.get(argname, axis.name)!r} and {axis.name!r}",
                    fix="name each argument in one axis only",
                )
            owner[argname] = axis.name
    return made


def unknown_name(word: str, given: str, axes: Sequence[Axis], *, arguments_only: bool = False) -> PairwiseError:
    """The refusal of a name that no axis has, with the nearest that one has."""
    whole = () if arguments_only else tuple(axis.name for axis in axes)
    names = list(dict.fromkeys((*whole, *(argname for axis in axes for argname in axis.argnames))))
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return PairwiseError(
        f"{word} names {given!r}, which no axis has",
        fix=f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(names)}",
    )


def find_axis(name: str, axes: Sequence[Axis]) -> int | None:
    """The number of the axis with that name or with that argument name."""
    squeezed = name.replace(" ", "")
    for number, axis in enumerate(axes):
        if squeezed == axis.name.replace(" ", "") or squeezed in axis.argnames:
            return number
    return None


_PLAIN = frozenset({int, bool, str, bytes, type(None)})


def identity(value: object) -> object:
    """``_identity``, or the object alone where a container holds itself."""
    try:
        return _identity(value)
    except RecursionError:
        return ("object", id(value))


def _identity(value: object) -> object:
    """A hashable key that two positions share if and only if they hold the same value.

    Builtin scalars and containers are the same when type and contents are (NaN is one value, 0.0 and -0.0 are
    two, 1 and True and 1.0 are three); everything else only when it is the same object.
    """
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if kind is float:
        return (float, value.hex())  # type: ignore[attr-defined]  # kind is float
    if kind is complex:
        return (complex, repr(value))
    if kind in (tuple, list):
        return (kind, tuple(_identity(part) for part in value))  # type: ignore[attr-defined]  # a sequence
    if kind is dict:
        return (dict, tuple((_identity(k), _identity(v)) for k, v in value.items()))  # type: ignore[attr-defined]
    return ("object", id(value))


def holding(axis: Axis, wanted: Sequence[tuple[str, object]]) -> list[int]:
    """Where (each different value once) the axis holds what is ``wanted`` of it, as (argument or axis name, value).

    Positions that hold the same value if there are any, else those that hold an equal one.
    """

    def held(position: int, name: str) -> object:
        whole = len(axis.argnames) == 1 or name not in axis.argnames
        return axis.values[position] if whole else axis.argument(name, position)

    places = [[(held(position, name), value) for name, value in wanted] for position in axis.first_positions]
    same = [all(_same(value, other) for value, other in pairs) for pairs in places]
    if any(same):
        return [position for position, fits in zip(axis.first_positions, same, strict=True) if fits]
    return [
        position
        for position, pairs in zip(axis.first_positions, places, strict=True)
        if all(matches(value, other) for value, other in pairs)
    ]


def _same(value: object, wanted: object) -> bool:
    return value is wanted or identity(value) == identity(wanted)


def matches(value: object, wanted: object) -> bool:
    """Is ``value`` the one that the user means by ``wanted``: the same object, or equal and of the same type."""
    if _same(value, wanted):
        return True
    kind = type(value)
    if kind is not type(wanted) or kind in _PLAIN or kind in (float, complex):
        return False
    if kind in (tuple, list, dict):
        one, other = _parts(value), _parts(wanted)
        return len(one) == len(other) and all(map(matches, one, other))
    try:
        equal = value == wanted
        return equal is True or (getattr(equal, "shape", None) == () and bool(equal))
    except Exception:  # noqa: BLE001 - a foreign __eq__ may raise anything; then the values are not equal
        return False


def _parts(container: Any) -> list[object]:
    return list(container.items() if type(container) is dict else container)


def in_fixed_order(values: Iterable[object], name: str) -> list[object]:
    """A set's elements in an order that no hash seed changes: by type, then by text."""
    texts = [(_stable_text(value, name), value) for value in values]
    texts.sort(key=lambda pair: (type(pair[1]).__name__, pair[0]))
    for (text, one), (other_text, other) in pairwise(texts):
        if text == other_text and type(one).__name__ == type(other).__name__:
            raise PairwiseError(
                f"axis {name!r} is a set with two elements that print as {text}, so it has no fixed order",
                fix="write the values as a list",
            )
    return [value for _, value in texts]


def _stable_text(value: object, name: str) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, (frozenset, set)):
        return "{" + ", ".join(sorted(_stable_text(part, name) for part in value)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_stable_text(part, name) for part in value) + ")"
    text = repr(value)
    if holds_address(text):
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module and qualname and "<lambda>" not in qualname:
            return f"{module}.{qualname}"
        raise PairwiseError(
            f"axis {name!r} is a set, and {text} prints its address, so it has no fixed order",
            fix="write the values as a list",
        )
    return text


def holds_address(text: str) -> bool:
    """Does this text show where an object lies in memory, which differs from process to process?"""
    return re.search(r"\b0x[0-9a-fA-F]{6,}\b", text) is not None
