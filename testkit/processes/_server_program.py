"""What a server is before it runs: a command line or a function, and how it learns its port."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, BinaryIO, ClassVar

from testkit._loaded import loaded
from testkit.errors import ProcessesError
from testkit.processes import _server_main as child
from testkit.processes._family import TAG

__tracebackhide__ = True  # pytest shows the line that called us, not ours

WHERE = "argument of Server"
LONGEST = 80
"""Characters of a name in messages."""


class Program:
    """A command line or a function, with its environment and working directory; it can be launched many times.

    ``inherits``: it wants a listening socket. ``wants_port``: it wants to be told a port.
    """

    def __init__(
        self,
        target: Sequence[str] | Callable[..., Any],
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
    ) -> None:
        self._env = {name: str(word) for name, word in env.items()}
        self._cwd = cwd
        self._asks: set[str] = set()
        self._function: bytes | None = None
        if callable(target):
            self.name = str(getattr(_inner(target), "__qualname__", type(target).__qualname__))
            self._asks = _asked(target, self.name)
            self._function = _sent(target, self.name)
            self._words = [sys.executable, child.__file__, self.name]
        else:
            self._words = _checked_argv(target)
            command = " ".join(shlex.join([os.path.basename(self._words[0]), *self._words[1:]]).split())
            self.name = command if len(command) <= LONGEST else f"{command[: LONGEST - 3]}..."
        self.advice = 'put "{port}" or "{fd}" into argv, or give port'
        if self._function:
            self.advice = "let the function take sock or port, or give port"
        texts = [*([] if self._function else self._words), *self._env.values()]
        self.inherits = "sock" in self._asks or any("{fd}" in text for text in texts)
        self.wants_port = "port" in self._asks or any("{port}" in text for text in texts)

    def environ(self) -> dict[str, str]:
        """The environment that it will have, as far as it does not depend on the start."""
        return {"PYTHONUNBUFFERED": "1", **os.environ, **self._env}

    def launch(self, port: int | None, number: int | None, out: BinaryIO, tag: str) -> subprocess.Popen[bytes]:
        """Start it in a session of its own; it inherits nothing but ``out`` and the socket ``number``.

        Raises ``OSError`` for a program or a folder that is not there.
        """
        values = {"{port}": str(port), "{fd}": str(number)}
        fill = partial(re.sub, r"\{(port|fd)\}", lambda found: values[found[0]])
        with self._input({"port": port, "sock": number}) as given:
            return subprocess.Popen(
                self._words if self._function else [fill(word) for word in self._words],
                stdin=given,
                stdout=out,  # a file: a pipe that nobody reads stops its writer
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env={**self.environ(), **{name: fill(word) for name, word in self._env.items()}, TAG: tag},
                start_new_session=True,  # all of it can be found and ended
                pass_fds=() if number is None else (number,),
            )

    def _input(self, offered: dict[str, int | None]) -> Any:
        """What it reads: nothing; or, to begin with, the function: a file without a name, which leaves nothing."""
        if self._function is None:
            return open(os.devnull, "rb")
        path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        pickle.dump((path, {name: offered[name] for name in self._asks}, self._function), file)
        file.seek(0)
        return file


def _checked_argv(argv: Any) -> list[str]:
    if isinstance(argv, (str, bytes)) or not isinstance(argv, Sequence) or not argv:
        raise ProcessesError(
            f"argv is {argv!r}", WHERE, "give a list, the program and its arguments; or give a function"
        )
    return [str(word) for word in argv]


def _inner(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _asked(function: Callable[..., Any], name: str) -> set[str]:
    """Which of ``sock`` and ``port`` it names; whatever else it cannot do without is refused."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(_inner(function)):
        raise ProcessesError(f"calling {name} only makes a coroutine or a generator", WHERE, "call asyncio.run in it")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ProcessesError(f"the parameters of {name} are not known", WHERE, "wrap it in a function") from None
    asks = set()
    for parameter in parameters:
        if parameter.name in ("sock", "port") and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            asks.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            fix = "let it take sock or port; what else it needs comes from its closure or functools.partial"
            raise ProcessesError(f"{name} needs {parameter.name}, which no server is given", WHERE, fix)
    return asks


def _sent(function: Callable[..., Any], name: str) -> bytes:
    """The function by value, its module's names too; refused by name if that cannot be."""
    module = sys.modules.get(getattr(_inner(function), "__module__", None) or "")
    sent = _pickled(function, module)
    if isinstance(sent, bytes):
        return sent
    what = _culprit(_inner(function), module)
    problem = f"{name} cannot be sent to a server{what}: {type(sent).__name__}: {sent}"
    raise ProcessesError(problem, WHERE, "build it inside the function") from sent


def _culprit(function: Any, module: Any) -> str:
    """The first variable from outside that the function uses and that cannot be sent."""
    if not inspect.isfunction(function):
        return ""
    used = inspect.getclosurevars(function)
    for name, value in {**used.globals, **used.nonlocals}.items():
        if not isinstance(_pickled(value, module), bytes):
            return f", because of its variable {name}, a {type(value).__qualname__}"
    return ""


def _pickled(value: Any, module: Any) -> bytes | Exception:
    """``value`` by cloudpickle, or why not. What multiprocessing hands only to its own children does not travel."""
    import io
    from collections import ChainMap

    import cloudpickle

    from testkit.processes._travel import _by_value, _with_file

    connection = loaded("multiprocessing.connection")

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: _with_file(cloudpickle.Pickler.dispatch_table[CodeType])},
            {connection.Connection: _refused} if connection else {},  # else it travels as a number without a meaning
            cloudpickle.Pickler.dispatch_table,
        )

    buffer = io.BytesIO()
    with _by_value([module] if module is not None and module.__name__ != "__main__" else []):
        try:
            Pickler(buffer).dump(value)
        except Exception as error:  # noqa: BLE001 - a foreign __reduce__ may raise anything
            return error
    return buffer.getvalue()


def _refused(value: Any) -> Any:
    raise TypeError(f"cannot pickle {type(value).__name__!r} object")
