"""How one function is to be thinned: the closest marker, the options, the ini keys; and where each came from."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testkit._settings import Setting, resolve
from testkit.errors import PairwiseError

if TYPE_CHECKING:
    from testkit.pairwise._engine import Effort, Engine
    from testkit.pairwise._plan import Case
    from testkit.pairwise._predicates import Predicate
    from testkit.pairwise._rules import IniRule

ROTATE = -1
"""The seed that ``auto`` asks for, before it is known."""

ARGUMENTS = ("strength", "full", "where", "keep", "seed", "effort")


@dataclass(frozen=True)
class Options:
    """The run's settings; each remembers its source. ``rotated``: what the seed was taken from, if from the CI run."""

    off: bool
    strength: Setting[int]
    seed: Setting[int]
    effort: Setting[Effort]
    engine: Setting[Engine]
    over: Setting[int | None]
    report: Setting[bool]
    fail_under: Setting[float | None]
    isolate: Setting[int | None]
    lock: Setting[Path | None]
    costs: Setting[Path | None]
    history: Setting[Path | None]
    rotated: str = ""

    @property
    def files(self) -> bool:
        """Does the run read files beside the code?"""
        return any(setting.value is not None for setting in (self.lock, self.costs, self.history))


@dataclass(frozen=True)
class Request:
    """One function's settings.

    ``over``: thin only if there are more cases; ``marked``: a marker asks for it; ``own``: one on the function itself;
    ``asked_by``: what asks for it where no marker does.
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
    asked_by: str = "--pairwise-over"

    def place_of(self, nodeid: str) -> str:
        """Where a refusal comes from."""
        return f"marker of {nodeid}" if self.marked else f"{self.asked_by}, {nodeid}"


def read_options(config: Any) -> Options:
    """All settings; raises PairwiseError for a bad one, naming where it came from."""
    none: int | None = None
    no_limit: float | None = None
    no_path: Path | None = None
    off = bool(config.getoption("testkit_no_pairwise", None))
    options = Options(
        off=off,
        strength=resolve(config, "--pairwise-strength", _whole("strength", 1), 2),
        seed=resolve(config, "--pairwise-seed", _seed, 0),
        effort=resolve(config, "--pairwise-effort", _effort, "default"),
        engine=resolve(config, "--pairwise-engine", _engine, "testkit"),
        over=resolve(config, "--pairwise-over", _whole("pairwise-over", 1), none),
        report=resolve(config, "--pairwise-report", _switch, False),
        fail_under=resolve(config, "--pairwise-fail-under", _percent, no_limit),
        isolate=resolve(config, "--pairwise-isolate", _whole("pairwise-isolate", 1), none),
        lock=resolve(config, "--pairwise-lock", _path(config, "file"), no_path),
        costs=resolve(config, "--pairwise-costs", _path(config, "file or folder"), no_path),
        history=resolve(config, "--pairwise-history", _path(config, "folder"), no_path),
    )
    return options if off else _rotated(config, options)


def _rotated(config: Any, options: Options) -> Options:
    """With the seed of this CI run in place of ``auto``; refuses what shards or a lock file would make untrue."""
    for folder in (options.history, options.costs):
        _refuse_moving(config, folder)
    if options.seed.value != ROTATE:
        return options
    source = options.seed.source
    if options.lock.value is not None:
        problem = f"a lock file ({options.lock.source}) keeps the cases that seed 'auto' would change"
        raise PairwiseError(problem, source, "leave out one of them")
    from testkit.pairwise._rotation import seed_of_run

    no_plan: Path | None = None
    plan = resolve(config, "--timing-plan", _path(config, "file"), no_plan).value
    seed, origin = seed_of_run(os.environ, plan, source)
    return replace(options, seed=Setting(seed, source), rotated=origin)


def _refuse_moving(config: Any, folder: Setting[Path | None]) -> None:
    """A shard that starts when another has written there already would choose other cases."""
    no_path: Path | None = None
    written = resolve(config, "--timing-dir", _path(config, "folder"), no_path).value
    if folder.value is None or written is None or not resolve(config, "--timing-shard", _text, "").value:
        return
    paths = folder.value.resolve(), written.resolve()
    if paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0]):
        raise PairwiseError(
            f"{folder.value} is read to choose cases and written to: a shard that starts later would choose others",
            folder.source,
            "record into another folder, and merge it into this one afterwards",
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


def unmarked_request(options: Options, rule: IniRule | None) -> Request:
    """The request for a function without the marker: a line of ``pairwise_rules``, or else ``--pairwise-over``."""
    request = Request(
        strength=options.strength,
        seed=options.seed.value,
        effort=options.effort.value,
        engine=options.engine.value,
        over=options.over.value or 0,
    )
    if rule is None:
        return request
    return replace(
        request,
        strength=options.strength if rule.strength is None else Setting(rule.strength, rule.source),
        full=rule.full or (),
        where=rule.predicate(),
        over=rule.over,
        asked_by=rule.source,
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


def _text(raw: object, _: str) -> str:
    return str(raw).strip()


def _path(config: Any, what: str) -> Callable[[object, str], Path]:
    """A path from where pytest was started or, in an ini key, from the ini file."""

    def parse(raw: object, source: str) -> Path:
        if not str(raw).strip():
            raise PairwiseError(f"no {what} is named", source, f"name a {what}, or leave it out")
        ini = config.inipath.parent if config.inipath else config.rootpath
        return Path((ini if " ini " in source else config.invocation_params.dir) / Path(str(raw)).expanduser())

    return parse


def _seed(raw: object, source: str) -> int:
    if str(raw).strip() == "auto":
        return ROTATE
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
