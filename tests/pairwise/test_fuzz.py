"""Thousands of random models, each judged by brute force: nothing owed is missing, nothing disallowed is in."""

from __future__ import annotations

import enum
import random
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from brute import Product

from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise import _predicates, _space, coverage, sample

BATCHES, EACH = 24, 100
LONG_BATCHES, LONG_EACH = 40, 250
LARGEST = 1_200


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Dtype:
    """Stands for objects like dtypes: equal only to themselves, their repr is stable."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"kit.{self.name}"


class Touchy:
    """Like a tensor: comparing it gives no plain answer."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


class Alike:
    """Equal to every other one of its class, yet another object."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 0


ONE_NAN = float("nan")
MAKERS: list[Callable[[random.Random, int], Any]] = [
    lambda r, i: i,
    lambda r, i: i,
    lambda r, i: f"v{i}",
    lambda r, i: Dtype(f"float{i}"),
    lambda r, i: [None, "None", float("nan"), 0.0, -0.0, 1, True, 1.0][i % 8],
    lambda r, i: [1, True, 1.0, 1 + 0j, "1", b"1"][i % 6],
    lambda r, i: [i],
    lambda r, i: {"i": i, "nested": [i, {}]},
    lambda r, i: lambda: i,
    lambda r, i: Touchy(),
    lambda r, i: Alike(),
    lambda r, i: [Colour.RED, Colour.BLUE, int, float, len, ...][i % 6],
    lambda r, i: (i, (None, ONE_NAN)),
    lambda r, i: {i},
]


@dataclass
class Drawn:
    """A random model as a user would write it."""

    axes: dict[str, list[Any]]
    options: dict[str, Any] = field(default_factory=dict)
    where: list[Callable[..., Any]] = field(default_factory=list)


def draw(number: int) -> Drawn:
    """Model ``number``; the same one on every machine."""
    chance = random.Random(number)
    count = chance.choice([1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7])
    sizes: list[int] = []
    cases = 1
    for _ in range(count):
        size = min(chance.choice([1, 2, 2, 2, 3, 3, 4, 5, 7]), max(1, LARGEST // cases))
        sizes.append(size)
        cases *= size
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    axes: dict[str, list[Any]] = {}
    for size in sizes:
        width = chance.choice([1, 1, 1, 1, 2, 3])
        names = [next(letters) for _ in range(width)]
        columns = [_values(chance, size, few=width > 1) for _ in names]
        axes[chance.choice([",", ", "]).join(names)] = (
            columns[0] if width == 1 else [tuple(c[i] for c in columns) for i in range(size)]
        )
    strength = chance.randint(1, min(4, count))
    options: dict[str, Any] = {"strength": strength, "seed": chance.randint(0, 3)}
    options["effort"] = chance.choice([0, 0, 50, 400, "default"])
    options["engine"] = chance.choice(["testkit", "testkit", "testkit", "allpairspy"])
    if chance.random() < 0.35:
        full = [name.replace(" ", "") for name in chance.sample(list(axes), chance.randint(1, count))]
        options["full"] = [chance.choice([name, *name.split(",")]) for name in full]
    where = [_predicate(chance, axes) for _ in range(chance.choice([0, 0, 1, 1, 2, 3]))]
    if chance.random() < 0.4:
        options["keep"] = [_kept(chance, axes) for _ in range(chance.choice([1, 1, 2, 5]))]
    return Drawn(axes, options, where)


def _values(chance: random.Random, size: int, *, few: bool) -> list[Any]:
    make = chance.choice(MAKERS)
    values = [make(chance, i // 2 if few and chance.random() < 0.5 else i) for i in range(size)]
    if size > 1 and chance.random() < 0.1:
        values[-1] = values[0]
    return values


def _predicate(chance: random.Random, axes: Mapping[str, list[Any]]) -> Callable[..., Any]:
    """A forbidden table by identity or an arithmetic rule, with argument names of its own."""
    names = [part.strip() for name in axes for part in name.split(",")]
    scope = chance.sample(names, min(len(names), chance.choice([1, 2, 2, 3, 4])))
    salt = chance.randrange(1 << 30)
    share = chance.choice([0.05, 0.2, 0.2, 0.5, 0.8])
    kind = chance.choice(["table", "table", "sum", "order"])
    answers: dict[tuple[Any, ...], bool] = {}
    kept: list[Any] = []

    def judge(values: tuple[Any, ...]) -> Any:
        key = tuple(_name_of(value) for value in values)
        if key not in answers:
            kept.extend(values)
            text = repr((salt, [part if isinstance(part, str) else len(answers) for part in key]))
            answers[key] = random.Random(text).random() >= share
        if kind == "sum":
            return sum(len(part) if isinstance(part, str) else 7 for part in key) % 3
        if kind == "order":
            first, last = (part if isinstance(part, str) else "an object" for part in (key[0], key[-1]))
            return None if first > last else "yes"
        return answers[key]

    made: dict[str, Any] = {"judge": judge}
    exec(f"def rule({', '.join(scope)}): return judge(({', '.join(scope)},))", made)
    predicate: Callable[..., Any] = made["rule"]
    return predicate


def _name_of(value: Any) -> Any:
    """A key for any value: its text where that is the value, else the object."""
    text = repr(value)
    return id(value) if " at 0x" in text else f"{type(value).__name__}:{text}"


def _kept(chance: random.Random, axes: Mapping[str, list[Any]]) -> dict[str, Any]:
    """A complete or partial case; sometimes a mix of arguments that no position of an axis holds."""
    case: dict[str, Any] = {}
    share = chance.choice([0.3, 0.6, 1.0])
    for name, values in axes.items():
        if chance.random() < share:
            value = chance.choice(values)
            parts = [part.strip() for part in name.split(",")]
            if len(parts) == 1:
                case[parts[0]] = value
            elif chance.random() < 0.3:
                case[",".join(parts)] = value
            else:
                case |= {part: entry for part, entry in zip(parts, value, strict=True) if chance.random() < 0.6}
    return case


def check(number: int) -> str:
    """What model ``number`` came to; raises AssertionError with the number where the engine is wrong."""
    drawn = draw(number)
    options = drawn.options
    brute = Product(drawn.axes, strength=options["strength"], full=options.get("full", ()), where=drawn.where)
    keep = options.get("keep", [])
    where = drawn.where[0] if len(drawn.where) == 1 else drawn.where
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KitWarning)
        try:
            chosen = sample(drawn.axes, where=where, **options)
        except PairwiseError as error:
            return check_refusal(number, str(error), brute, keep)
    assert brute.allowed, number
    verdict = brute.judge(chosen.rows, keep)
    assert verdict.sound, (number, verdict)
    assert chosen.owed == verdict.owed, (number, chosen.owed, verdict.owed)
    assert chosen.floor <= len(chosen.rows), number
    assert len({tuple(map(id, row.values())) for row in chosen.rows}) <= len(chosen.rows)
    _check_coverage(number, drawn, brute, chosen.rows)
    return "satisfiable"


def check_refusal(number: int, said: str, brute: Product, keep: list[dict[str, Any]]) -> str:
    """Only a model without an allowed case, or a kept case that no allowed one holds, may be refused."""
    if not brute.allowed:
        assert "allows no case" in said or "allow no case together" in said, (number, said)
        return "unsatisfiable"
    assert said.startswith("pairwise: keep asks for"), (number, said)
    assert any(not brute.holders(case) for case in keep), (number, said)
    return "keep refused"


def _check_coverage(number: int, drawn: Drawn, brute: Product, rows: list[dict[str, Any]]) -> None:
    """``coverage`` counts what brute force counts, for the sample and for a part of it."""
    given = {name: drawn.options[name] for name in ("strength", "full") if name in drawn.options}
    for part in (rows, rows[number % 3 :: 3]):
        found = coverage(drawn.axes, part, where=drawn.where, **given)
        missing = list(brute.left_out(part))
        assert (found.owed, found.covered) == (len(brute.owed), len(brute.owed) - len(missing)), number
        assert len(found.missing) == len(missing), number


def run_batch(first: int, count: int) -> Counter[str]:
    return Counter(check(number) for number in range(first, first + count))


PATHS = {
    "joined tables": {},
    "searched components": {"TABLE_ROWS": 0},
    "lazy predicates": {"TABLE_CASES": 0},
    "both small": {"TABLE_ROWS": 6, "TABLE_CASES": 8},
}


def take(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PATHS[path].items():
        monkeypatch.setattr(_space if name == "TABLE_ROWS" else _predicates, name, value)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_models_are_covered_exactly(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take(list(PATHS)[batch % len(PATHS)], monkeypatch)
    found = run_batch(batch * EACH, EACH)
    assert found.total() == EACH
    assert found["satisfiable"] > EACH // 2, "the models drawn say too little"


@pytest.mark.parametrize("path", list(PATHS))
def test_the_models_reach_every_outcome_on_every_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(path, monkeypatch)
    found = run_batch(BATCHES * EACH, 40)
    assert set(found) == {"satisfiable", "unsatisfiable", "keep refused"}


@pytest.mark.long
@pytest.mark.parametrize("batch", range(LONG_BATCHES))
def test_ten_thousand_more_models_are_covered_exactly(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    take(list(PATHS)[batch % len(PATHS)], monkeypatch)
    assert run_batch(1_000_000 + batch * LONG_EACH, LONG_EACH).total() == LONG_EACH
