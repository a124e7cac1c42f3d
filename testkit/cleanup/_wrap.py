"""A suite's own clean-up after each test, put off: the code after a fixture's yield, or a callable of a conftest.

Of a fixture, the generator that waits at its yield is held instead of resumed; when the clean-up is due, the newest is
resumed and older ones are closed. A callable is replaced in the conftest, takes note of calls that come while a test is
torn down, and is called when the clean-up is due.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from testkit.cleanup._steps import Step
from testkit.errors import CleanupError

_NAME = re.compile(r"(?:(?P<module>\w+(?:\.\w+)*):)?(?P<name>[^\W\d]\w*)")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))  # the latter since Python 3.11
_BY_ITSELF = "name the callable that it calls instead of the fixture"


@dataclass(frozen=True)
class Target:
    """What to put off: a fixture or callable ``name``, of any module or of this one."""

    name: str
    module: str
    source: str

    @property
    def text(self) -> str:
        """As it was written."""
        return f"{self.module}:{self.name}" if self.module else self.name

    def is_in(self, module: str) -> bool:
        """Whether ``module`` is the one named; a conftest's dotted name depends on how pytest imports it."""
        return not self.module or module == self.module or module.endswith(f".{self.module}")

    def error(self, problem: str, fix: str = _BY_ITSELF) -> CleanupError:
        """A refusal of what was found under this name."""
        return CleanupError(f"{self.text} {problem}", self.source, fix)


def parse(text: str, source: str) -> Target:
    """``name`` or ``module:name``, or an error that names ``source``."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        problem = f"{text!r} is no name of a fixture or callable"
        raise CleanupError(problem, source, "write name or module:name, such as cleanup_fixture")
    return Target(match["name"], match["module"] or "", source)


def check_function(function: Callable[..., Any], target: Target) -> None:
    """Refuse a generator function in which closing a generator at its yield would run more code."""
    try:
        source = inspect.getsource(function.__code__)
        # The source of a method is indented; to dedent it would change text of several lines in it.
        [whole] = ast.parse(f"if 1:\n{source}" if source[0].isspace() else source).body
    except (AttributeError, OSError, TypeError, SyntaxError, ValueError) as error:
        raise target.error("has no source to read, so what surrounds its yield is unknown") from error
    todo: list[tuple[ast.AST, str]] = [(node, "") for node in (whole.body if isinstance(whole, ast.If) else [whole])]
    outermost = True
    while todo:
        node, block = todo.pop()
        if isinstance(node, _FUNCTIONS) and not outermost:
            continue
        outermost = False
        if isinstance(node, ast.YieldFrom):
            raise target.error("yields from another generator, whose code after the yield is unknown")
        if isinstance(node, ast.Yield) and block:
            raise target.error(f"yields inside a {block} block, which runs although the generator is dropped")
        if isinstance(node, _TRY):
            block = "try"
        elif isinstance(node, ast.With):
            block = "with"
        todo += [(child, block) for child in ast.iter_child_nodes(node)]


def check_argument(name: str, value: object, scope: str, ends: bool, target: Target) -> None:
    """Refuse an argument that is gone when the clean-up is due, or that would be alive until then.

    ``scope`` is that of the argument's fixture, ``ends`` whether it has code after a yield.
    """
    if name == "request" or isinstance(value, _PLAIN) or (scope == "session" and not ends):
        return
    raise target.error(f"takes the {scope}-scoped {name} ({type(value).__name__}), which is gone by then")


@dataclass(frozen=True)
class _Held:
    generator: Generator[Any, Any, Any]
    wanted: bool


class Wraps:
    """What is put off until the next clean-up.

    ``during_teardown``: something is being torn down. ``late``: something was put off since this was last set.
    ``ran``: how many tests ran so far. ``owes``: what is put off was in use while one ran, so it is due though the test
    that ends it is skipped, as the last one of a package or of the session may be.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.during_teardown = False
        self.late = False
        self.ran = 0
        self.owes = False
        self._held: dict[Hashable, _Held] = {}
        self._judged: dict[Any, CleanupError | None] = {}
        self._callables: list[_Callable] = []

    def means(self, fixturedef: Any) -> bool:
        """Whether this fixture is named, and has code after a yield; one that replaces it may have none."""
        func = fixturedef.func
        return fixturedef.argname == self.target.name and self.target.is_in(func.__module__) and yields(func)

    def refusal(self, fixturedef: Any, request: Any, arguments: Mapping[str, object]) -> CleanupError | None:
        """Why a fixture that is to be set up with these arguments cannot be put off; None if it can."""
        func = fixturedef.func
        if func not in self._judged:
            self._judged[func] = None
            try:
                check_function(func, self.target)
            except CleanupError as error:
                self._judged[func] = error
        if self._judged[func] is not None:
            return self._judged[func]
        try:
            for name, value in arguments.items():
                given = request._get_active_fixturedef(name)
                ends = yields(getattr(given, "func", None))
                check_argument(name, value, str(getattr(given, "scope", "function")), ends, self.target)
        except CleanupError as error:
            return error
        return None

    def take(self, key: Hashable, finalizers: list[Callable[[], object]], wanted: bool) -> None:
        """Hold what the runner would resume at the fixture's end. ``wanted``: the test asked for its clean-up."""
        for index in reversed(range(len(finalizers))):  # those that the fixture itself added come before
            for one in getattr(finalizers[index], "args", ()):
                if inspect.isgenerator(one):
                    finalizers[index] = functools.partial(self.hold, key, one, wanted, self.ran)
                    return
        raise self.target.error("is ended by this pytest in a way that we do not know")

    def hold(self, key: Hashable, generator: Generator[Any, Any, Any], wanted: bool, since: int = 0) -> None:
        """The fixture ``key`` is over: keep its generator, and close the older one, or itself if only that is wanted.

        The newest may belong to a test that wants no clean-up, while one before it does. ``since``: how many tests had
        run when it was set up.
        """
        self.owes = self.owes or self.ran > since
        newest = _Held(generator, wanted)
        older = self._held.pop(key, newest)
        self.late = True
        kept = older if older.wanted and not wanted else newest
        self._held[key] = kept
        for one in (older, newest):
            if one is not kept:
                one.generator.close()

    def replace(self, module: Any) -> Callable[[], None]:
        """Put the callable of this conftest off; returns what undoes it."""
        name = self.target.name
        call = getattr(module, name)
        marker = getattr(call, "_fixture_function_marker", getattr(call, "_pytestfixturefunction", None))
        if marker is not None:  # the latter before pytest 8.4
            name = getattr(marker, "name", None) or "the name that tests use"
            raise self.target.error("is a fixture under another name, so no test calls it", f"name {name}")
        if inspect.isclass(call) or not callable(call):
            raise self.target.error("is no function", "name a fixture, or a function that the conftest calls")
        if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call):
            raise self.target.error("is a coroutine or generator function, so calling it runs nothing")
        known = next((one for one in self._callables if one.call is call), None)
        if known is None:
            known = _Callable(call, self)
            self._callables.append(known)
        setattr(module, name, known.stand_in)
        return lambda: setattr(module, name, call)

    def wanted(self) -> bool:
        """Whether the clean-up of a test that asked for it is put off."""
        return any(held.wanted for held in self._held.values()) or any(one.owed for one in self._callables)

    def calls(self) -> bool:
        """Whether a call is put off that must be made at the latest when the run ends, since a test ran in it."""
        return self.ran > 0 and any(one.owed for one in self._callables)

    def steps(self, *, clean_start: bool = False) -> list[Step]:
        """What is put off, in the order in which it ended. A clean start calls a callable that nobody asked for."""
        name, source = self.target.text, self.target.source
        steps = [Step(name, functools.partial(self._resume, key), source) for key in self._held]
        for one in self._callables:
            if one.owed or clean_start:
                steps.append(Step(name, one.run, source))
        return steps

    def drop(self) -> None:
        """End what nobody will resume any more."""
        while self._held:
            self._held.popitem()[1].generator.close()

    def _resume(self, key: Hashable) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        try:
            next(held.generator)
        except StopIteration:
            return
        held.generator.close()
        raise self.target.error("yields more than once", "let the fixture yield once")


class _Callable:
    """A callable that is put off, and the arguments it is to be called with: each kind of call once."""

    def __init__(self, call: Callable[..., Any], wraps: Wraps) -> None:
        self.call = call
        self.owed: dict[tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]], None] = {}
        self._last: tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]] = ((), ())

        @functools.wraps(call)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if not wraps.during_teardown:
                return call(*args, **kwargs)
            for value in (*args, *kwargs.values()):
                if not isinstance(value, _PLAIN):
                    fix = "wrap it in a function that takes no objects"
                    raise wraps.target.error(f"is called with {type(value).__name__}, which may be gone by then", fix)
            self._last = (args, tuple(sorted(kwargs.items())))
            self.owed[self._last] = None
            wraps.late = True
            return None

        self.stand_in = stand_in

    def run(self) -> None:
        calls = list(self.owed) or [self._last]
        self.owed.clear()
        for args, kwargs in calls:
            self.call(*args, **dict(kwargs))


def yields(func: Any) -> bool:
    """Whether a fixture's function has code after a yield."""
    return inspect.isgeneratorfunction(func)


def decided(arguments: Mapping[str, object]) -> bool:
    """Whether no decision among a fixture's arguments, a plain False, is against the clean-up."""
    return not any(value is False for value in arguments.values())
