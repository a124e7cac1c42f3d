"""The models with known figures, for the tests and the benchmark: each as ``axes`` and options of ``sample``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data" / "pairwise"


@dataclass(frozen=True)
class Known:
    """A model and the rows that it may have at default effort (``exact``: neither more nor fewer)."""

    axes: dict[str, list[Any]]
    rows: int
    exact: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def levels(self) -> list[int]:
        return [len(values) for values in self.axes.values()]

    @property
    def strength(self) -> int:
        return int(self.options.get("strength", 2))


def uniform(*parts: tuple[int, int]) -> dict[str, list[Any]]:
    """Axes from (levels, how many)."""
    sizes = [levels for levels, count in parts for _ in range(count)]
    return {f"p{number}": list(range(size)) for number, size in enumerate(sizes)}


# ------------------------------------------------------------------ vLLM's skinny GEMM tests


def skinny_gemm() -> dict[str, dict[str, list[Any]]]:
    """The axes of the four functions, before they were thinned by hand."""
    facts = json.loads((DATA / "skinny_gemm_axes.json").read_text(encoding="utf-8"))
    functions = {}
    for name, facts_ in facts.items():
        if isinstance(facts_, dict):
            sizes = {key: facts_[key] for key in ("n", "k", "m", "n,k,m") if key in facts_}
            functions[name] = sizes | facts_["options"]
    return functions


def fits_the_device(n: int, k: int, m: int) -> bool:
    """The rule of that suite for a device with 256 compute units."""
    rounded = 1 << (n - 1).bit_length()
    shards, groups = ceil(k / 512), min(rounded // 16, 4)
    return rounded * m * shards <= 128 * 1024 * 12 and ceil(m / 64) * shards * groups <= 256


# ------------------------------------------------------------------ CTWedge models with constraints


def read_ctw(name: str) -> tuple[dict[str, list[Any]], list[Callable[..., Any]]]:
    """Axes and predicates of a CTWedge file whose constraints are clauses of (in)equalities."""
    text = (DATA / f"benchmark_{name}.ctw").read_text(encoding="utf-8")
    axes: dict[str, list[Any]] = {}
    for parameter, values in re.findall(r"^(\w+): (Boolean|\{[^}]*\})", text, re.M):
        axes[parameter] = [True, False] if values == "Boolean" else values.strip("{} ").split()
    return axes, [clause(found.split(" or ")) for found in re.findall(r"^ # (.+) #$", text, re.M)]


def clause(literals: list[str]) -> Callable[..., Any]:
    """A predicate that takes the parameters of a clause by name: ``["!p1", "p14!=v2"]``."""
    terms = []
    for literal in literals:
        found = re.fullmatch(r"(!?)(\w+)(?:(!?=)(\w+))?", literal.strip())
        assert found, literal
        denied, parameter, relation, value = found.groups()
        if relation:
            terms.append((parameter, f"{parameter} {relation if relation == '!=' else '=='} {value!r}"))
        else:
            terms.append((parameter, f"not {parameter}" if denied else parameter))
    scope = ", ".join(dict.fromkeys(parameter for parameter, _ in terms))
    made: dict[str, Any] = {}
    exec(f"def holds({scope}): return {' or '.join(term for _, term in terms)}", made)
    holds: Callable[..., Any] = made["holds"]
    holds.__qualname__ = " or ".join(literals)
    return holds


# ------------------------------------------------------------------ all of them

HIGH = {
    "3^13": (15, 15),
    "4^15 3^17 2^29": (29, 28),
    "4^1 3^39 2^35": (21, 21),
    "5^10": (38, 38),
    "10^20": (207, 195),
    "4^100": (45, 45),
    "spins": (20, 19),
    "bugzilla": (16, 16),
    "apache": (32, 30),
    "gcc": (20, 18),
    "spinv": (34, 32),
}
"""Rows that a model may have at high effort, and how few were aimed at."""


def known_models() -> dict[str, Known]:
    """By name; in the order in which the benchmark prints them."""
    functions = skinny_gemm()
    krc = functions["wvsplitkrc"]
    tcas = uniform((10, 2), (4, 1), (3, 2), (2, 7))
    models = {
        "krc": Known(krc, 96, exact=True),
        "wvsplitk": Known(functions["wvsplitk"], 54, exact=True),
        "fp8": Known(functions["wvsplitk_fp8"], 56, exact=True),
        "llmm1": Known(functions["llmm1"], 32, exact=True),
        "krc full n,k,m": Known(krc, 384, exact=True, options={"full": ("n", "k", "m")}),
        "krc too-large rule": Known(krc, 87, exact=True, options={"where": fits_the_device}),
        "3^4": Known(uniform((3, 4)), 9, exact=True),
        "8^8": Known(uniform((8, 8)), 64, exact=True),
        "2^100": Known(uniform((2, 100)), 10, exact=True),
        "4^100": Known(uniform((4, 100)), 52),
        "15^4": Known(uniform((15, 4)), 225, exact=True),
        "3^13": Known(uniform((3, 13)), 16),
        "4^15 3^17 2^29": Known(uniform((4, 15), (3, 17), (2, 29)), 32),
        "4^1 3^39 2^35": Known(uniform((4, 1), (3, 39), (2, 35)), 25),
        "5^10": Known(uniform((5, 10)), 41),
        "10^20": Known(uniform((10, 20)), 207),
        "TCAS t=2": Known(tcas, 100),
        "TCAS t=3": Known(tcas, 405, options={"strength": 3}),
        "TCAS t=4": Known(tcas, 1375, options={"strength": 4}),
    }
    for name, rows in (("spins", 20), ("bugzilla", 16), ("apache", 32), ("gcc", 18), ("spinv", 34)):
        axes, where = read_ctw(name)
        models[name] = Known(axes, rows, options={"where": where})
    return models
