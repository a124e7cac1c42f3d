"""A fresh process that takes itself for another platform: predicates replaced, packages there or absent, a choice made.

All of this runs in a process of its own, so nothing is ever put back, and what a gate decided at its import or keeps
in a cache was decided there. A predicate is replaced when its module has just been imported, before whoever imported
that module goes on: a gate in the package's own ``__init__`` asks the replacement too.
"""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from testkit.laws._choices import Refused, has_place, leaves, plain

__tracebackhide__ = True  # pytest shows the line that called us, not ours

Outcome = dict[str, Any]
"""``refused`` (a problem, a fix), ``raised`` (by decide), or ``choice`` and ``problems``; ``asked`` and ``watched``."""

Answers = Mapping[str, tuple[str, bytes]]
"""By what is replaced: one of the kinds below, and the pickled answer. It is loaded when it is needed: its module may
import what asks predicates."""
ABSENT, VALUE, CALL = "absent", "value", "call"

FOREIGN = (Exception, SystemExit)
"""What code of the user's may raise."""


def on_platform(
    platforms: Sequence[Answers], decide: bytes | str, ops: Mapping[str, Any] | None, *, rank: int
) -> Outcome:
    """What is chosen on the platform of this rank. ``decide``: a pickled function, or where to import it from."""
    world = World(platforms[rank])
    try:
        world.begin()
        outcome = _tried(decide, ops)
    except Refused as refused:
        outcome = {"refused": refused.args}
    return {**outcome, "asked": sorted(world.asked), "watched": sorted(world.watched)}


def _tried(decide: bytes | str, ops: Mapping[str, Any] | None) -> Outcome:
    try:
        choice = _decided(decide)
    except FOREIGN as error:
        return {"raised": said(error)}
    return {"choice": plain(choice), "problems": _problems(choice, ops)}


def _decided(decide: bytes | str) -> Any:
    if isinstance(decide, bytes):
        return pickle.loads(decide)()
    module, _, path = decide.partition(":")
    found = importlib.import_module(module)
    if not path:
        return True
    for name in path.split("."):
        found = getattr(found, name)
    return found() if callable(found) else found


def said(error: BaseException) -> str:
    """``ValueError: no such arch (/app/engine/ops.py:12 in choose)``"""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + where


def _problems(choice: Any, ops: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What of the choice is not there: the name of the op, and why. Functions and classes are."""
    found = []
    for op, leaf in leaves(choice):
        if not isinstance(leaf, (str, enum.Enum)):
            continue
        leaf = plain(leaf)
        if ops and leaf in ops:
            places = [ops[leaf]] if isinstance(ops[leaf], str) else ops[leaf] or []
        elif has_place(leaf):
            places = [leaf]
        elif ops is None:
            fix = f'give ops={{{leaf!r}: "package.module:function"}}, or None there for what needs no code'
            raise Refused(f"nothing says where the choice {leaf!r} is to be found", fix)
        else:
            near = difflib.get_close_matches(leaf, ops, n=1)
            found.append((op, f"{leaf} is not in ops" + (f"; the nearest is {near[0]}" if near else "")))
            continue
        found += [(op, f"{leaf} cannot be had: {why}") for place in places if (why := _absent(place))]
    return found


def _absent(place: str) -> str:
    """Why there is nothing at ``module:name`` or ``namespace::op``; "" if there is."""
    namespace, double, op = place.partition("::")
    module, _, path = ("torch", "", f"ops.{namespace}.{op}") if double else place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except FOREIGN as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{op} is not registered in torch.ops.{namespace}" if double and module in sys.modules else reason
    return f"{place} is None" if found is None else ""


class World:
    """What is replaced: attributes by ``module:path``, packages by name."""

    def __init__(self, answers: Answers) -> None:
        self.watched: set[str] = set()
        self.asked: set[str] = set()
        self._wrong: list[Refused] = []
        self._replaced: set[str] = set()
        self._attributes: dict[str, dict[str, tuple[str, bytes]]] = {}
        self._packages: dict[str, tuple[str, bytes]] = {}
        for target, answer in answers.items():
            module, colon, path = target.partition(":")
            if colon:
                self._attributes.setdefault(module, {})[path] = answer
            else:
                self._packages[module] = answer

    def begin(self) -> None:
        """Replace everything; raises ``Refused`` for what is not there to be replaced."""
        present = {name: contents for name, (kind, contents) in self._packages.items() if kind != ABSENT}
        for name in self._packages:
            for loaded in [loaded for loaded in sys.modules if f"{loaded}.".startswith(f"{name}.")]:
                del sys.modules[loaded]
            if name not in present:
                sys.modules[name] = None  # type: ignore[assignment]  # what Python takes for: there is no such module
        self.watched |= set(present)
        sys.meta_path.insert(0, _StandIns(present, self.asked))
        sys.meta_path.insert(0, _Watch(self._attributes, self._replace))
        for module, answers in self._attributes.items():
            try:
                imported = importlib.import_module(module)
            except FOREIGN as error:
                problem = (
                    f"the module of the predicate {module}:{next(iter(answers))} cannot be imported: {said(error)}"
                )
                fix = "check its name; what its import needs may be simulated before it"
                raise Refused(problem, fix) from None
            if module not in self._replaced:  # it was there before
                self._replace(imported)
        if self._wrong:
            raise self._wrong[0]

    def _replace(self, module: ModuleType) -> None:
        """Put into place what answers for ``module``; again where it is executed again."""
        self._replaced.add(module.__name__)
        try:
            for path, answer in self._attributes[module.__name__].items():
                self._put(module, path, answer)
        except Refused as refused:  # raised from here, an import of the user's might swallow it
            self._wrong.append(refused)

    def _put(self, module: ModuleType, path: str, answer: tuple[str, bytes]) -> None:
        target = f"{module.__name__}:{path}"
        *above, name = path.split(".")
        owner: Any = module
        for part in above:
            owner = _part(owner, part, target)
        original = _part(owner, name, target)
        raw = inspect.getattr_static(owner, name, original)
        if isinstance(raw, (property, functools.cached_property)):
            owner = owner if inspect.isclass(owner) else type(owner)
            new: Any = property(self._asking(target, answer, None))
        elif callable(original) and not inspect.isclass(original):
            new = self._asking(target, answer, original)
            new = staticmethod(new) if inspect.isclass(owner) else new
        else:
            new = pickle.loads(answer[1])
        try:
            setattr(owner, name, new)
        except (AttributeError, TypeError) as error:
            raise Refused(f"the predicate {target} cannot be replaced: {error}", "replace what it reads") from None

    def _asking(self, target: str, answer: tuple[str, bytes], original: Any) -> Callable[..., Any]:
        """A function in place of ``original`` (None: a property): notes that it was asked, and answers."""
        kind, packed = answer
        load = functools.cache(lambda: pickle.loads(packed))
        self.watched.add(target)

        def ask(*args: Any, **kwargs: Any) -> Any:
            self.asked.add(target)
            if kind != CALL:
                return load()
            return load()() if original is None else load()(*args, **kwargs)

        if original is not None:
            functools.update_wrapper(ask, original)
        if hasattr(original, "cache_clear"):
            ask.cache_clear = lambda: None  # type: ignore[attr-defined]  # of a cached predicate: somebody may call it
        return ask


def _part(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        where = getattr(owner, "__name__", type(owner).__name__)
        near = difflib.get_close_matches(name, dir(owner), n=1)
        fix = f"did you mean {near[0]}?" if near else f"look what {where} has"
        raise Refused(f"there is no predicate {target}: {where} has no {name}", fix) from None


class _Watch(MetaPathFinder, Loader):
    """Imports the modules of predicates as they would be, and then has their predicates replaced at once."""

    def __init__(self, modules: Mapping[str, object], replace: Callable[[ModuleType], None]) -> None:
        self._modules, self._replace = modules, replace
        self._loaders: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loaders[spec.name].create_module(spec)  # type: ignore[no-any-return]  # a loader's

    def exec_module(self, module: ModuleType) -> None:
        loader = self._loaders[module.__name__]
        module.__loader__ = loader
        if module.__spec__ is not None:
            module.__spec__.loader = loader  # for whoever wants its source
        loader.exec_module(module)
        self._replace(module)


class _StandIns(MetaPathFinder, Loader):
    """Packages that are there on a platform, with as much in them as was said."""

    def __init__(self, packages: Mapping[str, bytes], asked: set[str]) -> None:
        self._packages, self._asked = packages, asked

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self._packages:
            self._asked.add(name)
        elif not any(given.startswith(f"{name}.") for given in self._packages) or _is_there(name, path):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        packed = self._packages.get(module.__name__)
        contents = () if packed is None else pickle.loads(packed)
        if not isinstance(contents, Mapping):
            contents = {name: _stand_in(module.__name__, name) for name in contents}
        for name, value in contents.items():
            setattr(module, name, value)


def _is_there(name: str, path: Any) -> bool:
    others = (finder for finder in sys.meta_path if not isinstance(finder, (_Watch, _StandIns)))
    return any(finder.find_spec(name, path) for finder in others)


def _stand_in(module: str, name: str) -> Callable[..., None]:
    def stand_in(*args: object, **kwargs: object) -> None:
        raise RuntimeError(f"{module}.{name} is a stand-in: which implementation is chosen is asked, none runs")

    stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = module, name, name
    return stand_in
