"""What a clean-up does: steps by name, parsed once, and every one of them run though others fail."""

from __future__ import annotations

import gc
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from time import perf_counter
from typing import Any

from testkit._loaded import loaded
from testkit.errors import CleanupError


@dataclass(frozen=True)
class Step:
    """One thing to do, under the name it was asked for by."""

    name: str
    call: Callable[[], object]
    source: str = "default"


@dataclass(frozen=True)
class Outcome:
    """What one step cost and, if it failed, the error as text: an exception object would hold its frames alive."""

    step: Step
    seconds: float
    error: str = ""
    trace: str = ""
    interrupted: bool = False


def parse(lines: str | Iterable[str], source: str) -> tuple[Step, ...]:
    """The steps that ``lines`` name, in that order. ``source`` says where they stand, for messages."""
    if isinstance(lines, str):  # where another plugin made the ini key plain text
        lines = lines.splitlines()
    return tuple(_step(line.strip(), source) for line in lines if line.strip())


def run(steps: Sequence[Step], outcomes: list[Outcome] | None = None) -> list[Outcome]:
    """Run every step, in order. Only KeyboardInterrupt ends this early; ``outcomes`` holds what was done until then."""
    done = [] if outcomes is None else outcomes
    for step in steps:
        _run(step, done)
    return done


def _run(step: Step, done: list[Outcome]) -> None:
    start = perf_counter()
    try:
        step.call()
    except KeyboardInterrupt:
        done.append(Outcome(step, perf_counter() - start, interrupted=True))
        raise
    except BaseException as error:  # noqa: BLE001  # a test runner's fail() and skip() and sys.exit() are no Exception
        seconds = perf_counter() - start
        headline = traceback.format_exception_only(type(error), error)[-1].strip()
        inside = error.__traceback__ and error.__traceback__.tb_next  # the first frame is the call above
        trace = "".join(traceback.format_exception(type(error), error, inside))
        done.append(Outcome(step, seconds, headline, trace.rstrip()))
    else:
        done.append(Outcome(step, perf_counter() - start))


def problem(outcomes: Sequence[Outcome]) -> CleanupError | None:
    """The first step that failed, as an error; None if none did."""
    for outcome in outcomes:
        if outcome.error:
            key = "cleanup_wrap" if outcome.step.source == "from ini cleanup_wrap" else "cleanup_steps"
            fix = f"repair the step, or take it out of {key}"
            return CleanupError(f"step {outcome.step.name} raised {outcome.error}", outcome.step.source, fix)
    return None


def evidence(outcomes: Sequence[Outcome], after: str) -> str:
    """How many steps failed, and where each did. ``after`` says when they ran."""
    failed = [outcome for outcome in outcomes if outcome.error]
    lines = [f"  {len(failed)} of {len(outcomes)} steps failed {after}"]
    for outcome in failed:
        lines += ["", f"{outcome.step.name}:", outcome.trace]
    return "\n".join(lines)


def _collect() -> None:
    gc.collect()


def _empty_caches() -> None:
    """Give cached device memory back. Never imports torch, never starts a device that the tests left alone."""
    torch: Any = loaded("torch")
    if torch is None:
        return
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            device.empty_cache()
    # mps cannot say whether it was started; where it is available, emptying costs nothing
    if hasattr(torch, "mps") and torch.backends.mps.is_available():
        torch.mps.empty_cache()


_BUILT_IN: dict[str, Callable[[], object]] = {"gc": _collect, "torch": _empty_caches}

#: What runs where clean-up is asked for and no steps are named.
DEFAULT = tuple(Step(name, call) for name, call in _BUILT_IN.items())


def _step(line: str, source: str) -> Step:
    if line in _BUILT_IN:
        return Step(line, _BUILT_IN[line], source)
    module, colon, attributes = line.partition(":")
    if not (colon and module and attributes):
        near = get_close_matches(line, _BUILT_IN, n=1)
        if len(line.replace(",", " ").split()) > 1:
            raise CleanupError(f"unknown step {line!r}", source, "write one step a line")
        hint = f"did you mean {near[0]}?" if near else "write gc, torch or package.module:function"
        raise CleanupError(f"unknown step {line!r}", source, hint)
    call = _resolve(line, module, attributes, source)
    if inspect.isclass(call):
        raise CleanupError(f"step {line!r} is a class, so calling it only builds an object", source, "name a function")
    if not callable(call):
        raise CleanupError(f"step {line!r} is {type(call).__name__}, not a function", source, "name a function")
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise CleanupError(
            f"step {line!r} is a generator or coroutine function, so calling it runs nothing",
            source,
            "name an ordinary function",
        )
    try:
        inspect.signature(call).bind()
    except TypeError as error:
        raise CleanupError(f"step {line!r} cannot be called without arguments: {error}", source, "wrap it") from error
    except ValueError:  # a function that does not tell its arguments
        pass
    return Step(line, call, source)


def _resolve(line: str, module: str, attributes: str, source: str) -> Any:
    try:
        found = import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may leave by sys.exit() or skip() too
        raise _unimportable(line, module, error, source) from error
    try:
        return reduce(getattr, attributes.split("."), found)
    except AttributeError as error:
        near = get_close_matches(attributes, dir(found), n=1)
        hint = f"did you mean {module}:{near[0]}?" if near else f"name a function of {module}"
        raise CleanupError(f"step {line!r} does not exist in {module}", source, hint) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module's own __getattr__ may import more
        raise _unimportable(line, module, error, source) from error


def _unimportable(line: str, module: str, error: BaseException, source: str) -> CleanupError:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    fix = f"make {module} importable at the start of a run"
    if isinstance(error, ImportError):
        fix = "correct the name, or list its folder in pythonpath"
    return CleanupError(f"step {line!r} cannot be imported: {reason}", source, fix)
