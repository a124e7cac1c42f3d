"""``assert_platform_choices``: which implementation a gate chooses on every platform, without any of them."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from testkit.errors import LawsError
from testkit.laws._choices import (
    NO_ROW,
    NOT_SIMULATED,
    Difference,
    Refused,
    Table,
    differences,
    from_file,
    has_place,
    lines,
    plain,
    to_file,
)
from testkit.laws._failure import LawBroken
from testkit.laws._simulate import ABSENT, CALL, VALUE, Outcome, on_platform

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "assert_platform_choices"

HIDDEN = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "-1")
"""No device of this machine is seen, so that what nobody simulates is the same on every machine."""

_TARGET = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")


def assert_platform_choices(
    decide: Callable[[], Any] | str,
    platforms: Mapping[str, Mapping[str, Any]],
    expected: Mapping[str, Any] | None = None,
    *,
    snapshot: str | os.PathLike[str] | None = None,
    ops: Mapping[str, str | Sequence[str] | None] | None = None,
    timeout: float = 60.0,
    start: Literal["spawn", "preload"] = "spawn",
) -> Table:
    """What ``decide`` chooses on each of ``platforms`` is what a table says, and is there on that platform.

    Each platform is a fresh process. ``platforms`` maps its name to what answers there, the same names on each:
    ``"package.module:function"`` (or a method, property or value, ``"package.module:Class.name"``) to its answer, or to
    a function that is called with its arguments; ``"package"`` to None if it is absent there, to the names of functions
    that it has, or to a mapping of its names to values. All are in place before ``decide`` is imported.

    ``decide`` is a function without arguments, ``"package.module:function"``, ``"package.module:VALUE"``, or
    ``"package.module"``, which is only imported (its choice is True). A choice is text, a function or class, None, a
    number, or a mapping of ops to these. Text says where the implementation is, as ``"package.module:function"`` or
    ``"namespace::op"`` of ``torch.ops``, or is looked up in ``ops``, which maps it to such a place, to several that it
    needs, or to None for what needs no code.

    The table is ``expected``, one choice for each platform, or the file ``snapshot``, which is written if it is not
    there: that fails once, so that somebody reads it. ``timeout`` (seconds, for a process) and ``start`` are those of
    ``testkit.processes.run_ranks``.

    Returns the table. Raises ``LawBroken`` with the rows that differ, what cannot be had and where ``decide`` raised;
    ``LawsError`` for arguments that cannot be used, such as a predicate that does not exist, and if none of them was
    asked on any platform.
    """
    _checked(decide, platforms, expected, snapshot)
    _check_ops(ops)
    path = None if snapshot is None else Path(snapshot)
    wanted = from_file(path) if path is not None else _plain(expected)
    outcomes = _simulated(decide, platforms, ops, timeout, start)
    for name, outcome in outcomes.items():
        if "refused" in outcome:
            problem, fix = outcome["refused"]
            raise LawsError(problem, f"{WHERE}, on {name}", fix)
    asked, unasked = _asked(outcomes)
    _judge(wanted, outcomes, path, unasked)
    if unasked and not asked:
        fix = "replace what decide asks instead, or the choice is that of this machine"
        raise LawsError(f"decide asked for none of {', '.join(unasked)} on any platform", WHERE, fix)
    chosen = {name: outcome["choice"] for name, outcome in outcomes.items()}
    if wanted is None and path is not None:
        to_file(path, chosen)
        rows = [f"{platform} {op}".rstrip() + f": {made}" for platform, op, _, made in differences({}, chosen)]
        raise LawBroken(f"there was no table yet, {path} is new", rows, "read it, commit it and run again", WHERE)
    return chosen


def _checked(decide: object, platforms: object, expected: object, snapshot: object) -> None:
    """Raise ``LawsError`` for arguments that cannot be used."""
    if not (callable(decide) or (isinstance(decide, str) and _TARGET.fullmatch(decide))):
        fix = 'give a function, "package.module:function" or "package.module"'
        raise LawsError(f"decide is {decide!r}", f"argument of {WHERE}", fix)
    where = f"platforms of {WHERE}"
    if not isinstance(platforms, Mapping) or not platforms:
        raise LawsError("there is no platform", where, 'give such as {"cpu": {"engine.platform:is_rocm": False}}')
    first, targets = next(iter(platforms)), None
    for name, answers in platforms.items():
        if not isinstance(name, str) or not isinstance(answers, Mapping) or not answers:
            raise LawsError(f"{name!r} has {answers!r}", where, "give each name a mapping of predicates to answers")
        for target in answers:
            if not (isinstance(target, str) and _TARGET.fullmatch(target)):
                fix = 'write it as "package.module:function", or "package" for a whole one'
                raise LawsError(f"{target!r} of {name} is no predicate", where, fix)
        if targets is None:
            targets = list(answers)
        elif odd := sorted(set(targets) ^ set(answers)):
            fix = f"let both answer it: else this machine answers for {first if odd[0] in answers else name}"
            raise LawsError(f"{first} and {name} do not both have {odd[0]}", where, fix)
    if (expected is None) == (snapshot is None):
        raise LawsError("there is no table, or there are two", f"argument of {WHERE}", "give expected or snapshot")
    if expected is not None:
        _same_names(platforms, expected)


def _check_ops(ops: object) -> None:
    if not (ops is None or isinstance(ops, Mapping)):
        raise LawsError(f"ops is {ops!r}", f"argument of {WHERE}", 'give such as {"triton": "engine.triton_ops:topk"}')
    for word, places in (ops or {}).items():
        for place in [places] if isinstance(places, str) else places or []:
            if not (isinstance(place, str) and has_place(place)):
                fix = 'write it as "package.module:function", or "namespace::op" of torch.ops'
                raise LawsError(f"ops has {place!r} for {word}", f"argument of {WHERE}", fix)


def _same_names(platforms: Mapping[str, Any], expected: object) -> None:
    if not isinstance(expected, Mapping):
        raise LawsError(f"expected is {expected!r}", f"argument of {WHERE}", "give a choice for each platform")
    for name in [*platforms, *expected]:
        side, other = (expected, "expected") if name in platforms else (platforms, "platforms")
        if name not in side:
            near = difflib.get_close_matches(str(name), map(str, side), n=1)
            fix = f"did you mean {near[0]}?" if near else "give one row for each platform"
            raise LawsError(f"{name!r} is not in {other}", f"argument of {WHERE}", fix)


def _plain(expected: Mapping[str, Any] | None) -> Table:
    try:
        return {name: plain(choice) for name, choice in (expected or {}).items()}
    except Refused as refused:
        problem, fix = refused.args
        raise LawsError(problem, f"expected of {WHERE}", fix) from None


def _simulated(decide: Any, platforms: Mapping[str, Any], ops: Any, timeout: float, start: Any) -> dict[str, Outcome]:
    """What became of each platform, as many at a time as there are processors."""
    from testkit.processes import RanksFailed, run_ranks

    sent = decide if isinstance(decide, str) else packed(decide, "decide")
    answers = [{target: _sent(answer, target) for target, answer in row.items()} for row in platforms.values()]
    found: dict[str, Outcome] = {}
    names, width = list(platforms), os.cpu_count() or 1
    for begin in range(0, len(names), width):
        some = names[begin : begin + width]
        given = answers[begin : begin + width], sent, ops
        try:
            made = run_ranks(on_platform, len(some), args=given, timeout=timeout, start=start, env=HIDDEN)
        except RanksFailed as error:
            ranks = ", ".join(f"rank {rank} is {name}" for rank, name in enumerate(some))
            raise LawBroken(f"{error.problem}; {ranks}", error.evidence.splitlines(), error.fix, WHERE) from None
        found |= zip(some, made, strict=True)
    return found


def _sent(answer: Any, target: str) -> tuple[str, bytes]:
    if answer is None and ":" not in target:
        return ABSENT, b""
    return CALL if callable(answer) else VALUE, packed(answer, f"the answer of {target}")


def packed(value: Any, what: str) -> bytes:
    """``value`` for another process. Functions of modules that cannot be imported there, as a test's, go by value."""
    import cloudpickle

    parts = [value, *(value.values() if isinstance(value, Mapping) else ())]
    modules = {sys.modules.get(getattr(part, "__module__", None) or "") for part in parts}
    known = cloudpickle.list_registry_pickle_by_value()
    own = [module for module in modules if module and module.__name__ not in known and _only_here(module)]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]  # cloudpickle has no types
    except Exception as error:  # noqa: BLE001 - a foreign __reduce__ may raise anything
        problem = f"{what} cannot be sent to a fresh process: {type(error).__name__}: {error}"
        raise LawsError(problem, f"argument of {WHERE}", 'name it: "package.module:function"') from None
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _only_here(module: ModuleType) -> bool:
    return module.__name__ != "__main__" and PathFinder.find_spec(module.__name__.partition(".")[0], sys.path) is None


def _asked(outcomes: Mapping[str, Outcome]) -> tuple[list[str], list[str]]:
    """Of the predicates and packages that can be seen being asked for: those that were, and those that were not."""
    watched = dict.fromkeys(target for outcome in outcomes.values() for target in outcome["watched"])
    asked = {target for outcome in outcomes.values() for target in outcome["asked"]}
    return [target for target in watched if target in asked], [target for target in watched if target not in asked]


def _judge(wanted: Table | None, outcomes: Mapping[str, Outcome], path: Path | None, unasked: list[str]) -> None:
    """Raise ``LawBroken`` for all that is not as it should be. ``wanted``: None where there is no table yet."""
    raised = {name: outcome["raised"] for name, outcome in outcomes.items() if "raised" in outcome}
    chosen = {name: outcome["choice"] for name, outcome in outcomes.items() if "choice" in outcome}
    absent = [(name, op, why) for name in chosen for op, why in outcomes[name]["problems"]]
    rows = {name: choice for name, choice in (wanted or {}).items() if name not in raised}
    differ = differences(rows, chosen) if wanted is not None else []
    if not (raised or absent or differ):
        return
    headlines = [
        f"on {', '.join(name for name in raised if raised[name] == text)} decide raised {text}"
        for text in dict.fromkeys(raised.values())
    ]
    headlines += [f"on {name} {op + ': ' if op else ''}{why}" for name, op, why in absent]
    headlines += [_headline(row, path) for row in differ]
    evidence = headlines[: len(headlines) - len(differ)] if len(headlines) > 1 else []
    evidence += lines(differ) if differ else []
    wrong = {*raised, *(name for name, *_ in [*absent, *differ])}
    if right := [name for name in chosen if name not in wrong]:
        evidence.append(f"as they should be: {', '.join(right)}")
    if unasked := [target for target in unasked if not target.startswith("torch.")]:  # those come all together
        evidence.append(f"asked on no platform: {', '.join(unasked)}")
    more = f", and {len(headlines) - 1} more" if len(headlines) > 1 else ""
    fix = "let the gate choose, op by op, what is there" if raised or absent else "repair the gate"
    if differ:
        meant = "expected" if path is None else f"{path.name} by hand, or delete it to have it written anew"
        fix += f"; if a difference is meant, change {meant}"
    raise LawBroken(headlines[0] + more, evidence, fix, WHERE)


def _headline(row: Difference, path: Path | None) -> str:
    platform, op, wanted, made = row
    if wanted == NO_ROW:
        return f"{platform} has no row in {path}"
    if made == NOT_SIMULATED:
        return f"{platform} has a row in {path}, and is no platform"
    return f"on {platform} {op or 'the choice'} is {made}, not {wanted}"
