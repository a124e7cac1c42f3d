"""How one function is to be thinned: the closest marker, the options, the ini keys; and where each came from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from testkit._settings import Setting, resolve
from testkit.errors import PairwiseError

if TYPE_CHECKING:
    from testkit.pairwise._engine import Effort, Engine
    from testkit.pairwise._plan import Case
    from testkit.pairwise._predicates import Predicate

ARGUMENTS = ("strength", "full", "where", "keep", "seed", "effort")


@dataclass(frozen=True)
class Options:
    """The run's settings; each remembers its source."""

    off: bool
    strength: Setting[int]
    seed: Setting[int]
    effort: Setting[Effort]
    engine: Setting[Engine]
    over: Setting[int | None]
    report: Setting[bool]
    fail_under: Setting[float | None]


@dataclass(frozen=True)
class Request:
    """One function's settings.

    ``over``: thin only if there are more cases; ``marked``: a marker asks for it; ``own``: one on the function itself.
    """

    strength: Setting[int]
    seed: int
    effort: Effort
    engine: Engine
    full: str | Iterable[str] = ()
    where: Predicate | Iterable[Predicate] | None = None
    keep: Case | Iterable[Case] = ()
    over: int = 0
    marked: bool = False
    own: bool = False

    def place_of(self, nodeid: str) -> str:
        """Where a refusal comes from."""
        return f"marker of {nodeid}" if self.marked else f"--pairwise-over, {nodeid}"


def read_options(config: Any) -> Options:
    """All settings; raises PairwiseError for a bad one, naming where it came from."""
    none: int | None = None
    no_limit: float | None = None
    return Options(
        off=bool(config.getoption("testkit_no_pairwise", None)),
        strength=resolve(config, "--pairwise-strength", _whole("strength", 1), 2),
        seed=resolve(config, "--pairwise-seed", _seed, 0),
        effort=resolve(config, "--pairwise-effort", _effort, "default"),
        engine=resolve(config, "--pairwise-engine", _engine, "testkit"),
        over=resolve(config, "--pairwise-over", _whole("pairwise-over", 1), none),
        report=resolve(config, "--pairwise-report", _switch, False),
        fail_under=resolve(config, "--pairwise-fail-under", _percent, no_limit),
    )


def marked_request(marker: Any, options: Options, *, own: bool) -> Request:
    """The request of a ``pairwise`` marker; raises PairwiseError for arguments that it does not have."""
    if len(marker.args) > 1:
        raise PairwiseError(
            f"the marker takes one positional argument, the strength, not {len(marker.args)}",
            fix=f"name the others: {', '.join(ARGUMENTS[1:])}",
        )
    for name in marker.kwargs:
        if name not in ARGUMENTS:
            near = difflib.get_close_matches(name, ARGUMENTS, n=1)
            raise PairwiseError(
                f"the marker has no argument {name!r}",
                fix=f"did you mean {near[0]!r}?" if near else f"use {', '.join(ARGUMENTS)}",
            )
        if isinstance(marker.kwargs[name], Iterator):
            raise PairwiseError(f"{name} is a generator, which serves one function only", fix="give a list")
    given = dict(zip(ARGUMENTS, marker.args, strict=False))
    if "strength" in given and "strength" in marker.kwargs:
        raise PairwiseError("the marker gives strength twice", fix="give it once")
    given |= {name: value for name, value in marker.kwargs.items() if value is not None}
    strength, source = given.get("strength"), "from the marker"
    return Request(
        strength=options.strength if strength is None else Setting(strength, source),
        seed=given.get("seed", options.seed.value),
        effort=given.get("effort", options.effort.value),
        engine=options.engine.value,
        full=given.get("full", ()),
        where=given.get("where"),
        keep=given.get("keep", ()),
        marked=True,
        own=own,
    )


def unmarked_request(options: Options) -> Request:
    """The request for a function without the marker under ``--pairwise-over``."""
    return Request(
        strength=options.strength,
        seed=options.seed.value,
        effort=options.effort.value,
        engine=options.engine.value,
        over=options.over.value or 0,
    )


def _whole(what: str, least: int) -> Any:
    def parse(raw: object, source: str) -> int:
        text = str(raw).strip()
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise PairwiseError(
                f"{what} is {raw!r}, not a whole number from {least} up", source, f"use {least} or more"
            )
        return int(text)

    return parse


def _seed(raw: object, source: str) -> int:
    if raw == "auto":
        raise PairwiseError("seed 'auto' is not available yet", source, "give a number")
    number: int = _whole("seed", 0)(raw, source)
    return number


def _effort(raw: object, source: str) -> Effort:
    if raw == "default":
        return "default"
    if raw == "high":
        return "high"
    text = str(raw).strip()
    if text.isascii() and text.isdigit():
        return int(text)
    raise PairwiseError(f"effort is {raw!r}", source, "use default, high or a number of moves")


def _engine(raw: object, source: str) -> Engine:
    if raw == "testkit":
        return "testkit"
    if raw == "allpairspy":
        return "allpairspy"
    raise PairwiseError(f"engine is {raw!r}", source, "use testkit or allpairspy")


def _switch(raw: object, source: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    answer = words.get(str(raw).strip().lower())
    if answer is None:
        raise PairwiseError(f"the switch is {raw!r}", source, "use true or false")
    return answer


def _percent(raw: object, source: str) -> float:
    try:
        number = float(str(raw).strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise PairwiseError(f"the percentage is {raw!r}, not a number from 0 to 100", source, "use 100 for all tuples")
    if 0 < number < 1:
        raise PairwiseError(f"the percentage is {raw!r}, less than one percent", source, f"write {100 * number:g}")
    return number
