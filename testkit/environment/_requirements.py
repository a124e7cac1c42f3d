"""What a test requires of its machine: ``rdma-core>=50``, ``gpu_arch in (gfx950, sm90)``; whether a machine has it.

``NAME OP VERSION``, ``NAME OP SIZE``, ``NAME OP NUMBER`` or ``NAME in (a, b)``. Versions are compared by
``packaging``, as in https://packaging.python.org/specifications/version-specifiers/: ``==3.11.*`` works, and a
development version comes before its release. In a list ``3.11`` stands for 3.11 and all that begins with it.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testkit.environment._sources import Fact
from testkit.errors import MachineError

if TYPE_CHECKING:
    from packaging.version import Version

WHERE = "from marker requires_machine"

KINDS = {
    "os": "word",
    "os_version": "version",
    "kernel": "version",
    "machine": "word",
    "glibc": "version",
    "container": "word",
    "cpu": "word",
    "cpus": "number",
    "memory": "size",
    "python": "version",
    "python_implementation": "word",
    "torch": "version",
    "torch_cuda": "version",
    "torch_hip": "version",
    "triton": "version",
    "driver": "version",
    "cuda_driver": "version",
    "cuda_toolkit": "version",
    "rocm": "version",
    "cudnn": "version",
    "nccl": "version",
    "rccl": "version",
    "rdma-core": "version",
    "ibverbs": "version",
    "gpus": "number",
    "gpu_model": "word",
    "gpu_memory": "size",
    "gpu_arch": "word",
    "gpu_capability": "version",
    "gpu_links": "number",
}
"""What can be required. Names that begin with gpu_ speak of every card."""

OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_COMPARED = re.compile(r"\s*([\w-]+?)\s*(>=|<=|==|!=|>|<)\s*([^\s<>=!](?:.*\S)?)\s*")
_LISTED = re.compile(r"\s*([\w-]+)\s+in\s*\(([^()]*)\)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)")
_LIKE_A_VERSION = re.compile(
    r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-zA-Z0-9]+(?:[._-][a-zA-Z0-9]+)*)?"
)
_CAPABILITY = re.compile(r"sm(\d+)(\d)")


@dataclass(frozen=True)
class Requirement:
    """``wanted``: what stands behind the operator, parsed; a list for ``in``. ``text``: in one spelling."""

    name: str
    op: str
    wanted: Any
    text: str


_JOINED = re.compile(r"\s(and|or)\s")
_WORD = re.compile(r"[\w.+() -]+")  # a card's model has spaces


def parse(text: str, where: str = WHERE) -> Requirement:
    """The requirement that ``text`` states; raises MachineError, with ``where`` it came from, if it states none."""
    if _JOINED.search(text):
        fix = 'give them apart: requires_machine("os==debian", "cpus>=2"); for "or" write gpu_arch in (sm90, gfx950)'
        raise MachineError(f"{text!r} holds two requirements", where, fix)
    if found := _LISTED.fullmatch(text):
        name = _known(found[1], text, where)
        words = [word for word in (part.strip() for part in found[2].split(",")) if word]
        if not words:
            raise MachineError(f"{text!r} lists nothing", where, f"write it as {name} in (a, b)")
        listed = [_PARSERS[KINDS[name]]("in", word, text, where) for word in words]
        return Requirement(name, "in", listed, f"{name} in ({', '.join(words)})")
    found = _COMPARED.fullmatch(text)
    if found is None:
        fix = 'write it as "kernel>=6.8", "gpu_memory>=40GiB" or "gpu_arch in (gfx950, sm90)"'
        raise MachineError(f"{text!r} is no requirement", where, fix)
    name, op, value = _known(found[1], text, where), found[2], found[3]
    wanted = _PARSERS[KINDS[name]](op, value, text, where)
    return Requirement(name, op, wanted, f"{name}{op}{value}")


def _known(name: str, text: str, where: str) -> str:
    if name in KINDS:
        return name
    parts = [known for known in KINDS if name in known.split("_")]  # cuda: torch_cuda, cuda_driver, ...
    near = parts or difflib.get_close_matches(name, KINDS, n=1)
    fix = f"did you mean {', '.join(near)}?" if near else f"known are: {', '.join(KINDS)}"
    raise MachineError(f"{text!r}: nothing is called {name}", where, fix)


def _version(op: str, value: str, text: str, where: str) -> Any:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(f"=={value}.*" if op == "in" else op + value)
    except InvalidSpecifier:
        fix = "give them apart" if "," in value else "write it as 6.8, 2.27.3 or ==3.11.*"
        raise MachineError(f"{text!r}: {value} is no version", where, fix) from None


def _size(op: str, value: str, text: str, where: str) -> int:
    found = _SIZE.fullmatch(value)
    if op == "in":
        raise MachineError(f"{text!r}: sizes are not listed", where, "use >= or <=")
    if found is None:
        raise MachineError(f"{text!r}: {value} is no size", where, "write it as 40GiB or 512MiB")
    return int(float(found[1]) * UNITS[found[2]])


def _number(op: str, value: str, text: str, where: str) -> int:
    if not value.isdecimal():
        raise MachineError(f"{text!r}: {value} is no whole number", where, "write it as 2")
    return int(value)


def _word(op: str, value: str, text: str, where: str) -> str:
    if op not in ("==", "!=", "in"):
        raise MachineError(f"{text!r}: words have no order", where, "use ==, != or in (a, b)")
    if not _WORD.fullmatch(value):
        raise MachineError(f"{text!r}: {value} is no word", where, "write it without quotes and signs")
    return value.lower()


_PARSERS = {"version": _version, "size": _size, "number": _number, "word": _word}


def unmet(requirement: Requirement, facts: Mapping[str, Fact]) -> str:
    """``needs rdma-core>=50, found 39.0 (libibverbs.so.1.14.39.0)``; "" if the machine has what is required.

    What is absent or unknown meets no requirement.
    """
    values, how = _found(requirement.name, facts)
    if values and all(value is not None and _holds(requirement, value) for value in values):
        return ""
    shown = ", ".join(dict.fromkeys(_shown(requirement, value) for value in values)) or "no GPU"
    return f"needs {requirement.text}, found {shown} ({how})"


def _found(name: str, facts: Mapping[str, Fact]) -> tuple[list[Any], str]:
    """What the machine has, once or for each card, and how it was read."""
    if not name.startswith("gpu"):
        fact = facts[name]
        return [fact.value], fact.how
    cards, how = facts["gpus"].value, facts["gpus"].how
    if cards is None:
        return [None], how
    if name == "gpus":
        return [len(cards)], how
    if name == "gpu_capability":
        found = [_CAPABILITY.fullmatch(card["arch"] or "") for card in cards]
        return [f"{match[1]}.{match[2]}" if match else None for match in found], how
    return [card[name.removeprefix("gpu_")] for card in cards], how


def _holds(requirement: Requirement, value: Any) -> bool:
    kind, op, wanted = KINDS[requirement.name], requirement.op, requirement.wanted
    if kind == "version":
        version = as_version(value)
        some = wanted if op == "in" else [wanted]
        return version is not None and any(one.contains(version, prereleases=True) for one in some)
    value = value.lower() if kind == "word" else value
    return value in wanted if op == "in" else bool(OPERATORS[op](value, wanted))


def as_version(text: str) -> Version | None:
    """``5.15.0`` of ``5.15.0-122-generic``: as much of ``text`` as packaging calls a version; None for nothing."""
    from packaging.version import Version

    found = _LIKE_A_VERSION.match(text)
    return Version(found[0]) if found else None


def _shown(requirement: Requirement, value: Any) -> str:
    if value is None:
        return "unknown" if requirement.name.startswith("gpu") else "none"
    return size_text(value) if KINDS[requirement.name] == "size" else str(value)


def size_text(size: int) -> str:
    """``139.8 GiB``."""
    unit = next((unit for unit in ("TiB", "GiB", "MiB") if size >= UNITS[unit]), "KiB")
    return f"{size / UNITS[unit]:.4g} {unit}"
