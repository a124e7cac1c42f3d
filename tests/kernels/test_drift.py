"""Planted drift and healthy stubs: each fault is told with its attribute, class and line, and no healthy one is."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

from testkit.errors import KernelsError
from testkit.kernels import Drift, bare, namespace, stub_drift

HEAD = """
import enum, functools, typing
from dataclasses import dataclass, field
from types import SimpleNamespace
"""


@dataclass(frozen=True)
class Fault:
    """Today's class, a stub of yesterday's, and what must be said.

    ``use`` makes the stub and runs what a test would; it raises, or leaves the stubs to judge in ``stubs``. Each line
    of either text that ends with ``# HERE`` must be named.
    """

    owner: str
    attribute: str
    code: str
    use: str


FAULTS = {
    "a field was renamed in __init__": Fault(
        "Backend",
        "scale",
        """
class Backend:
    def __init__(self, scale):
        self.softmax_scale = scale  # HERE
    def run(self):
        return self.softmax_scale
""",
        "bare(Backend, scale=2.0)  # HERE",
    ),
    "the class reads a new field": Fault(
        "Backend",
        "window",
        """
class Backend:
    def __init__(self, heads, window):
        self.heads = heads
        self.window = (window, 0)  # HERE
    def run(self):
        return self.heads + self.window[0]  # HERE
""",
        "bare(Backend, heads=8).run()",
    ),
    "the class reads a new field with a default": Fault(
        "Backend",
        "window",
        """
class Backend:
    def __init__(self, heads, window):
        self.heads = heads
        self.window = window  # HERE
    def run(self):
        return self.heads + getattr(self, "window", 0)  # HERE
""",
        "b = bare(Backend, heads=8); b.run(); stubs = [b]",
    ),
    "a branch on hasattr is not taken": Fault(
        "Backend",
        "sinks",
        """
class Backend:
    def __init__(self, heads, sinks):
        self.heads = heads
        self.sinks = sinks  # HERE
    def run(self):
        if hasattr(self, "sinks"):  # HERE
            return self.sinks
        return self.heads
""",
        "b = bare(Backend, heads=8); b.run(); stubs = [b]",
    ),
    "an AttributeError is caught": Fault(
        "Backend",
        "sinks",
        """
class Backend:
    def __init__(self, sinks):
        self.sinks = sinks  # HERE
    def run(self):
        try:
            return self.sinks  # HERE
        except AttributeError:
            return None
""",
        "b = bare(Backend); b.run(); stubs = [b]",
    ),
    "a field became a property": Fault(
        "Backend",
        "scale",
        """
class Backend:
    def __init__(self, size):
        self.size = size
    @property
    def scale(self):  # HERE
        return self.size ** -0.5
""",
        "bare(Backend, scale=2.0)",
    ),
    "a property reads a new nested field": Fault(
        "Config",
        "cfg.kernel_config",
        """
class Config:
    def __init__(self, backend):
        self.model_config = SimpleNamespace(dtype="bf16")
        self.kernel_config = SimpleNamespace(linear_backend=backend)  # HERE
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    @property
    def backend(self):
        return self.cfg.kernel_config.linear_backend  # HERE
    def __getattr__(self, name):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
""",
        "bare(Layer, cfg=namespace(Config, model_config=None)).backend",
    ),
    "a property reads a new field of a plain namespace": Fault(
        "Layer",
        "cfg.kernel_config",
        """
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    @property
    def backend(self):
        return self.cfg.kernel_config.linear_backend  # HERE
""",
        "bare(Layer, cfg=SimpleNamespace(model_config=None)).backend",
    ),
    "a cached property reads a new field": Fault(
        "Backend",
        "block",
        """
class Backend:
    def __init__(self, block):
        self.block = block  # HERE
    @functools.cached_property
    def pages(self):
        return 64 // self.block  # HERE
""",
        "bare(Backend).pages",
    ),
    "a slot is empty": Fault(
        "Backend",
        "block",
        """
class Backend:
    __slots__ = ("heads", "block")
    def __init__(self, heads):
        self.heads = heads
        self.block = 16  # HERE
    def run(self):
        return self.heads * self.block  # HERE
""",
        "bare(Backend, heads=1).run()",
    ),
    "a field of a dataclass with slots was renamed": Fault(
        "Metadata",
        "num_prefils",
        """
@dataclass
class Metadata:
    __slots__ = ("num_prefills", "tables")
    num_prefills: int  # HERE
    tables: list
""",
        "bare(Metadata, num_prefils=1)",
    ),
    "a frozen dataclass has a new field": Fault(
        "Metadata",
        "block",
        """
@dataclass(frozen=True)
class Metadata:
    heads: int
    block: int  # HERE
    def total(self):
        return self.heads * self.block  # HERE
""",
        "bare(Metadata, heads=2).total()",
    ),
    "a default factory was removed": Fault(
        "Metadata",
        "tables",
        """
@dataclass
class Metadata:
    tables: list  # HERE
    heads: list = field(default_factory=list)
    def total(self):
        return len(self.heads) + len(self.tables)  # HERE
""",
        "bare(Metadata).total()",
    ),
    "an argument of a dataclass is no field any more": Fault(
        "Metadata",
        "heads",
        """
from dataclasses import InitVar
@dataclass
class Metadata:
    heads: InitVar[int]
    head: int = 0  # HERE
""",
        "bare(Metadata, heads=2)",
    ),
    "a field is set by a helper of __init__": Fault(
        "Backend",
        "workspace",
        """
class Backend:
    def __init__(self):
        self._allocate()
    def _allocate(self):
        self.workspace = [0] * 8  # HERE
    def run(self):
        return len(self.workspace)  # HERE
""",
        "bare(Backend).run()",
    ),
    "a field is set by a helper of a base class": Fault(
        "Backend",
        "workspace",
        """
class Base:
    def _allocate(self):
        self.workspace = [0] * 8  # HERE
class Backend(Base):
    def __init__(self):
        self._allocate()
    def run(self):
        return getattr(self, "workspace", [])  # HERE
""",
        "b = bare(Backend); b.run(); stubs = [b]",
    ),
    "a field is set by the __init__ of a base class": Fault(
        "Backend",
        "head_size",
        """
class Base:
    def __init__(self, size):
        self.head_size = size  # HERE
class Backend(Base):
    def __init__(self, size):
        super().__init__(size)
        self.size = size
    def run(self):
        return self.size + self.head_size  # HERE
""",
        "bare(Backend, size=1).run()",
    ),
    "a base class was taken away": Fault(
        "Backend",
        "head_size",
        """
class Base:
    def __init__(self, size):
        self.head_size = size
class Backend:
    def __init__(self, size):
        self.head_sizes = [size]  # HERE
""",
        "bare(Backend, head_size=1)",
    ),
    "a field is set by a function beside the class": Fault(
        "Backend",
        "stream",
        """
def set_up(target):
    target.stream = 7  # HERE
class Backend:
    def __init__(self):
        set_up(self)
    def run(self):
        return self.stream  # HERE
""",
        "bare(Backend).run()",
    ),
    "a decorator has replaced __init__": Fault(
        "Backend",
        "heads",
        """
def compiled(cls):
    before = cls.__init__
    def __init__(self, *args):
        before(self, *args)
        self.compiled = True
    cls.__init__ = __init__
    return cls
@compiled
class Backend:
    def __init__(self, heads):
        self.heads = heads  # HERE
    def run(self):
        return getattr(self, "heads", 1)  # HERE
""",
        "b = bare(Backend, compiled=False); b.compiled; b.run(); stubs = [b]",
    ),
    "setattr in a loop over names": Fault(
        "Backend",
        "keys",
        """
class Backend:
    def __init__(self):
        for name in ("queries", "keys"):
            setattr(self, name, [])  # HERE
    def run(self):
        return self.queries + self.keys  # HERE
""",
        "bare(Backend, queries=[]).run()",
    ),
    "setattr with a name that is put together": Fault(
        "Backend",
        "leyer_0",
        """
class Backend:
    def __init__(self, layers):
        self.layers = layers  # HERE
        for number in range(layers):
            setattr(self, f"layer_{number}", number)
""",
        "bare(Backend, leyer_0=1)",
    ),
    "a private name": Fault(
        "Backend",
        "_Backend__scale",
        """
class Backend:
    def __init__(self, scale):
        self.__scale = scale  # HERE
    def run(self):
        return self.__scale  # HERE
""",
        "bare(Backend).run()",
    ),
    "a value of the class stands in for one of __init__": Fault(
        "Backend",
        "scale",
        """
class Backend:
    scale = None
    def __init__(self, size):
        self.scale = size ** -0.5  # HERE
    def run(self):
        return 1 if self.scale is None else 2  # HERE
""",
        "b = bare(Backend); b.run(); stubs = [b]",
    ),
    "a name that is only annotated": Fault(
        "Backend",
        "stream",
        """
class Backend:
    stream: int  # HERE
    def run(self):
        return self.stream  # HERE
""",
        "bare(Backend).run()",
    ),
    "a class attribute was renamed": Fault(
        "Backend",
        "accept_output",
        """
class Backend:
    accept_output_buffer = True  # HERE
""",
        "bare(Backend, accept_output=False)",
    ),
    "__getattr__ delegates to what is missing": Fault(
        "Wrapper",
        "inner",
        """
class Wrapper:
    def __init__(self, inner):
        self.inner = inner  # HERE
    def __getattr__(self, name):
        return getattr(self.inner, name)  # HERE
""",
        "bare(Wrapper).heads",
    ),
    "__del__ of something half made": Fault(
        "Handle",
        "handle",
        """
class Handle:
    def __init__(self):
        self.handle = 3  # HERE
    def __del__(self):
        self.released = self.handle  # HERE
""",
        "h = bare(Handle); Handle.__del__(h)",
    ),
    "a context manager that nobody entered": Fault(
        "Session",
        "file",
        """
class Session:
    def __init__(self, path):
        self.path = path
    def __enter__(self):
        self.file = open(self.path)  # HERE
        return self
    def __exit__(self, *error):
        self.file.close()  # HERE
""",
        "bare(Session, path='x').__exit__(None, None, None)",
    ),
    "a nested configuration lacks a field": Fault(
        "Parallel",
        "cfg.parallel.rank",
        """
class Parallel:
    def __init__(self, size, rank):
        self.size = size
        self.rank = rank  # HERE
@dataclass
class Config:
    parallel: Parallel
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        return self.cfg.parallel.rank  # HERE
""",
        "bare(Layer, cfg=namespace(Config, parallel={'size': 2})).run()",
    ),
    "a nested configuration has a misspelt field": Fault(
        "Parallel (at parallel)",
        "sise",
        """
class Parallel:
    def __init__(self, size):
        self.size = size  # HERE
class Config:
    def __init__(self, parallel: "Parallel | None"):
        self.parallel = parallel
""",
        "namespace(Config, parallel=SimpleNamespace(sise=2))",
    ),
    "a configuration field is read with a default only": Fault(
        "Config",
        "cfg.use_fast_path",
        """
class Config:
    def __init__(self, fast):
        self.use_fast_path = fast  # HERE
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        return getattr(self.cfg, "use_fast_path", False)  # HERE
""",
        "b = bare(Layer, cfg=namespace(Config)); b.run(); stubs = [b]",
    ),
    "a misspelt field where any name is accepted": Fault(
        "Config",
        "use_fastpath",
        """
class Config:
    def __init__(self, **options):
        for name, value in options.items():
            setattr(self, name, value)
def run(cfg):
    return getattr(cfg, "use_fast_path", False)
""",
        "c = namespace(Config, use_fastpath=True)  # HERE\nrun(c); stubs = [c]",
    ),
    "a given field that nobody reads any more": Fault(
        "Backend",
        "block",
        """
class Backend:
    def __init__(self, heads, block):
        self.heads = heads
        self.block = block
    def run(self):
        return self.heads
""",
        "b = bare(Backend, heads=1, block=2)  # HERE\nb.run(); stubs = [b]",
    ),
    "a protocol has a new member": Fault(
        "Reader",
        "dtype",
        """
class Reader(typing.Protocol):
    size: int
    dtype: str  # HERE
def run(reader):
    return reader.size, reader.dtype  # HERE
""",
        "run(namespace(Reader, size=1))",
    ),
    "a field of a named tuple was renamed": Fault(
        "Shape",
        "row",
        """
class Shape(typing.NamedTuple):
    rows: int  # HERE
    columns: int = 1
""",
        "namespace(Shape, row=1)",
    ),
    "a member of an enumeration was renamed": Fault(
        "Mode",
        "PREFIL",
        """
class Mode(enum.Enum):
    PREFILL = 1  # HERE
    DECODE = 2
""",
        "namespace(Mode, PREFIL=1)",
    ),
    "an instance as the spec has no such field": Fault(
        "Config",
        "blocksize",
        """
class Config:
    def __init__(self, block_size=16):
        self.block_size = block_size  # HERE
""",
        "namespace(Config(), blocksize=32)",
    ),
    "by source: a helper reads a new field": Fault(
        "Backend",
        "window",
        """
class Backend:
    def __init__(self, heads, window):
        self.heads = heads
        self.window = window  # HERE
    def run(self):
        return self._blocks() * self.heads
    def _blocks(self):
        return self.window // 16  # HERE
""",
        "drift = stub_drift(bare(Backend, heads=8), runs=['run'])",
    ),
    "by source: a new nested field": Fault(
        "Config",
        "cfg.kernel_config",
        """
class Config:
    def __init__(self, kernel_config):
        self.kernel_config = kernel_config  # HERE
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        cfg = self.cfg
        return cfg.kernel_config.linear_backend  # HERE
""",
        "drift = stub_drift(bare(Layer, cfg=namespace(Config)), runs=['run'])",
    ),
    "by source: a new field with a default": Fault(
        "Config",
        "cfg.fast",
        """
class Config:
    def __init__(self, fast):
        self.fast = fast  # HERE
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        return getattr(self.cfg, "fast", False)  # HERE
""",
        "drift = stub_drift(bare(Layer, cfg=namespace(Config)), runs=['run'])",
    ),
    "by source: a hand-made object with a name that is gone": Fault(
        "Backend",
        "scale",
        """
class Backend:
    def __init__(self, scale):
        self.softmax_scale = scale  # HERE
""",
        "b = object.__new__(Backend); b.scale = 1\ndrift = stub_drift(b, runs=())",
    ),
    "by source: a given field that nothing reads": Fault(
        "Backend",
        "block",
        """
class Backend:
    def __init__(self, heads, block):
        self.heads = heads
        self.block = block
    def run(self):
        return self.heads
""",
        "drift = stub_drift(bare(Backend, heads=1, block=2), runs=['run'])  # HERE",
    ),
}

TORCH_HEAD = HEAD + "import torch\nfrom torch import nn\n"
TORCH_FAULTS = {
    "a module has a new buffer": Fault(
        "Norm",
        "scale",
        """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))  # HERE
    def forward(self, x):
        return x * self.scale  # HERE
""",
        "bare(Norm)(torch.ones(2))",
    ),
    "a parameter of a module was renamed": Fault(
        "Linear",
        "weights",
        """
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))  # HERE
""",
        "bare(Linear, weights=nn.Parameter(torch.ones(2)))",
    ),
    "a module reads a new field with a default": Fault(
        "Linear",
        "scale",
        """
class Linear(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale  # HERE
    def forward(self, x):
        return x * getattr(self, "scale", 1)  # HERE
""",
        "b = bare(Linear); b(torch.ones(2)); stubs = [b]",
    ),
}


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., ModuleType]:
    """Make a module of a text, with its source in a file."""

    def make(text: str, name: str = "engine") -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"{name}_{tmp_path.name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and annotations look there
        spec.loader.exec_module(module)
        return module

    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        if name.endswith(tmp_path.name):
            del sys.modules[name]


def told(engine: Callable[..., ModuleType], tmp_path: Path, head: str, fault: Fault) -> str:
    """What is said about a fault: the error, or the drift."""
    module = engine(head + fault.code)
    names: dict[str, Any] = {**vars(module), "bare": bare, "namespace": namespace, "stub_drift": stub_drift}
    use = tmp_path / "use.py"
    use.write_text(fault.use)
    try:
        exec(compile(fault.use, use, "exec"), names)
    except KernelsError as error:
        return str(error)
    found: list[Drift] = names["drift"] if "drift" in names else stub_drift(*names["stubs"])
    assert len(found) == 1
    return str(found[0])


def marked(tmp_path: Path) -> list[str]:
    """The lines to be named, as a message names them."""
    lines = [(path, *line) for path in tmp_path.glob("*.py") for line in enumerate(path.read_text().splitlines(), 1)]
    return [f"{path.name}:{number}: {text.strip()[:40]}" for path, number, text in lines if text.endswith("# HERE")]


def check(text: str, fault: Fault, tmp_path: Path) -> None:
    assert fault.attribute in text
    assert fault.owner in text
    lines = marked(tmp_path)
    assert lines
    assert not [line for line in lines if line.rpartition(": ")[0] not in text], text


@pytest.mark.parametrize("name", FAULTS)
def test_drift_is_told_with_attribute_class_and_line(
    engine: Callable[..., ModuleType], tmp_path: Path, name: str
) -> None:
    check(told(engine, tmp_path, HEAD, FAULTS[name]), FAULTS[name], tmp_path)


@pytest.mark.parametrize("name", TORCH_FAULTS)
def test_drift_of_a_module_is_told_with_attribute_class_and_line(
    engine: Callable[..., ModuleType], tmp_path: Path, name: str
) -> None:
    pytest.importorskip("torch")
    check(told(engine, tmp_path, TORCH_HEAD, TORCH_FAULTS[name]), TORCH_FAULTS[name], tmp_path)


@dataclass(frozen=True)
class Healthy:
    """``use`` runs without an error and leaves ``stubs``, which have not drifted; nor have they for ``runs``."""

    code: str
    use: str
    runs: tuple[str, ...] = ("run",)


HEALTHY = {
    "every field that is read is given": Healthy(
        """
class Backend:
    def __init__(self, heads, size):
        self.heads, self.size = heads, size
        self.heavy = [0] * 10**9
    def run(self):
        return self.heads * self.size
""",
        "b = bare(Backend, heads=2, size=3); assert b.run() == 6; stubs = [b]",
    ),
    "defaults of a frozen dataclass with slots": Healthy(
        """
@dataclass(frozen=True, slots=True)
class Metadata:
    heads: int
    tables: list = field(default_factory=list)
    block: int = 16
    def run(self):
        return self.heads * self.block + len(self.tables)
""",
        "m = bare(Metadata, heads=2); assert m.run() == 32; assert m.tables is m.tables; stubs = [m]",
    ),
    "names that __init__ sets and deletes": Healthy(
        """
class Backend:
    def __init__(self, heads):
        self.heads = heads
        self.a = self.b = self.c = 1
        del self.a
        delattr(self, "b")
        self.__dict__.pop("c")
    def run(self):
        return self.heads + getattr(self, "a", 0) + getattr(self, "b", 0) + getattr(self, "c", 0)
""",
        "b = bare(Backend, heads=2); assert b.run() == Backend(2).run() == 2; stubs = [b]",
    ),
    "a field that nobody sets": Healthy(
        """
@dataclass
class Backend:
    heads: int
    cache: int = field(init=False)
    def run(self):
        return self.heads + getattr(self, "cache", 0)
""",
        "b = bare(Backend, heads=2); assert b.run() == Backend(2).run() == 2; stubs = [b]",
    ),
    "an annotation of a mixin": Healthy(
        """
class Mixin:
    cache: int
class Backend(Mixin):
    heads = 2
    def run(self):
        return self.heads + getattr(self, "cache", 0)
""",
        "b = bare(Backend); assert b.run() == Backend().run() == 2; stubs = [b]",
    ),
    "an assignment that may be suppressed": Healthy(
        """
import contextlib
class Backend:
    def __init__(self, heads):
        self.heads = heads
        with contextlib.suppress(ImportError):
            import no_such_module
            self.cache = no_such_module.cache
    def run(self):
        return self.heads + getattr(self, "cache", 0)
""",
        "b = bare(Backend, heads=2); assert b.run() == Backend(2).run() == 2; stubs = [b]",
    ),
    "generators and coroutines that __init__ makes": Healthy(
        """
class Backend:
    def __init__(self, heads):
        self.heads = heads
        self.steps(), self.wait().close()
    def steps(self):
        self.a = 1
        yield 1
    async def wait(self):
        self.b = 1
    def run(self):
        return self.heads + getattr(self, "a", 0) + getattr(self, "b", 0)
""",
        "b = bare(Backend, heads=2); assert b.run() == Backend(2).run() == 2; stubs = [b]",
    ),
    "a value that is made when it is first asked for": Healthy(
        """
class Backend:
    def __init__(self):
        self.heads = 1
    def run(self):
        if not hasattr(self, "_workspace"):
            self._workspace = [0] * self.heads
        return len(self._workspace)
""",
        "b = bare(Backend, heads=3); assert b.run() == b.run() == 3; stubs = [b]",
    ),
    "a field that __init__ sets in one branch only": Healthy(
        """
class Backend:
    def __init__(self, quantized):
        self.heads = 2
        if quantized:
            self.scale = 0.5
    def run(self):
        return self.heads * getattr(self, "scale", 1)
""",
        "b = bare(Backend, heads=2); assert b.run() == 2; stubs = [b]",
    ),
    "a branch that is not taken reads more": Healthy(
        """
class Backend:
    def __init__(self, heads, quantized, scale):
        self.heads, self.quantized, self.scale = heads, quantized, scale
    def run(self):
        if not self.quantized:
            return self.heads
        return self.heads * self.scale
""",
        "b = bare(Backend, heads=2, quantized=False); assert b.run() == 2; stubs = [b]",
    ),
    "a property with a setter": Healthy(
        """
class Backend:
    def __init__(self, scale):
        self.scale = scale
    @property
    def scale(self):
        return self._scale
    @scale.setter
    def scale(self, value):
        self._scale = value * 2
    def run(self):
        return self.scale
""",
        "b = bare(Backend, scale=2); assert b.run() == 4; stubs = [b]",
    ),
    "__getattr__ answers for an inner object": Healthy(
        """
class Wrapper:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def run(self):
        return self.real + getattr(self, "nothing", 0)
""",
        "w = bare(Wrapper, inner=5); assert w.run() == 5; stubs = [w]",
    ),
    "a context manager": Healthy(
        """
class Session:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.entered = True
        return self
    def __exit__(self, *error):
        self.log.append(self.entered)
    def run(self):
        with self:
            return self.log
""",
        "s = bare(Session, log=[]); assert s.run() == [True]; stubs = [s]",
    ),
    "everything is read at once": Healthy(
        """
class Backend:
    def __init__(self, heads):
        self.heads = heads
    def run(self):
        return dict(self.__dict__)
""",
        "b = bare(Backend, heads=2); assert b.run() == {'heads': 2}; stubs = [b]",
    ),
    "a copy is read": Healthy(
        """
import copy
class Backend:
    def __init__(self, heads):
        self.heads = heads
    def run(self):
        return copy.deepcopy(self).heads
""",
        "b = bare(Backend, heads=[2]); assert b.run() == [2]; stubs = [b]",
    ),
    "names from arguments": Healthy(
        """
class Config:
    def __init__(self, **options):
        self.__dict__.update(options)
    def run(self):
        return self.heads
""",
        "b = bare(Config, heads=2); assert b.run() == 2; stubs = [b]",
    ),
    "an abstract class with a method that is real": Healthy(
        """
import abc
class Backend(abc.ABC):
    def __init__(self, heads):
        self.heads = heads
    @abc.abstractmethod
    def forward(self): ...
    def run(self):
        return self.heads
""",
        "b = bare(Backend, heads=2); assert b.run() == 2; stubs = [b]",
    ),
    "a configuration with real defaults, nested": Healthy(
        """
@dataclass
class Parallel:
    size: int = 1
@dataclass
class Config:
    model: str
    parallel: Parallel = field(default_factory=Parallel)
    block: int = 16
    @property
    def total(self):
        return self.block * self.parallel.size
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        return self.cfg.total
""",
        "b = bare(Layer, cfg=namespace(Config, block=32)); assert b.run() == 32; stubs = [b]",
    ),
    "a configuration that __init__ fills with constants": Healthy(
        """
class Config:
    flag = True
    def __init__(self, block=16, *, name="x"):
        self.block = block
        self.name = name
        self.layers = [1, 2]
class Layer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
    def run(self):
        return (self.cfg.block, self.cfg.name, self.cfg.layers, self.cfg.flag)
""",
        "b = bare(Layer, cfg=namespace(Config)); assert b.run() == (16, 'x', [1, 2], True); stubs = [b]",
    ),
    "a question about a name that no configuration has": Healthy(
        """
class Config:
    def __init__(self, heads):
        self.heads = heads
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        return getattr(self.cfg, "quant_config", None) or self.cfg.heads
""",
        "b = bare(Layer, cfg=namespace(Config, heads=2)); assert b.run() == 2; stubs = [b]",
    ),
    "a real instance as the spec": Healthy(
        """
class Parallel:
    def __init__(self):
        self.size = 2
class Config:
    def __init__(self):
        self.block = 16
        self.parallel = Parallel()
    def total(self):
        return self.block * self.parallel.size
class Layer:
    def __init__(self, cfg):
        self.cfg = cfg
    def run(self):
        return self.cfg.total()
""",
        "b = bare(Layer, cfg=namespace(Config(), parallel={'size': 4})); assert b.run() == 64; stubs = [b]",
    ),
    "a protocol": Healthy(
        """
class Reader(typing.Protocol):
    size: int
    def read(self) -> int: ...
class Layer:
    def __init__(self, reader: Reader):
        self.reader = reader
    def run(self):
        return self.reader.size + self.reader.read()
""",
        "b = bare(Layer, reader=namespace(Reader, size=1, read=lambda: 2)); assert b.run() == 3; stubs = [b]",
    ),
    "other code sets a name of its own": Healthy(
        """
def prepare(layer):
    layer.packed = True
class Layer:
    def __init__(self, size):
        self.size = size
    def run(self):
        prepare(self)
        return self.size
""",
        "b = bare(Layer, size=1); assert b.run() == 1; stubs = [b]",
    ),
    "the object is handed to code that nobody can follow": Healthy(
        """
def total(layer):
    return layer.size
class Layer:
    def __init__(self, size):
        self.size = size
    def run(self):
        return sum(map(total, [self]))
""",
        "b = bare(Layer, size=1); assert b.run() == 1; stubs = [b]",
    ),
}

TORCH_HEALTHY = {
    "a module with a parameter, a buffer and a child": Healthy(
        """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.ones(2))
        self.act = nn.ReLU()
        self.bias = None
    def forward(self, x):
        y = self.act(x * self.weight * self.scale)
        return y if self.bias is None else y + self.bias
""",
        "b = bare(Layer, weight=nn.Parameter(torch.ones(2)), scale=torch.ones(2), act=nn.ReLU(), bias=None)\n"
        "assert b(torch.ones(2)).tolist() == [1, 1]; assert len(list(b.buffers())) == 1; stubs = [b]",
        ("forward",),
    ),
    "a module that is moved and saved": Healthy(
        """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
    def run(self):
        return self.double().state_dict()
""",
        "b = bare(Layer, weight=nn.Parameter(torch.ones(2)))\n"
        "assert b.run()['weight'].dtype is torch.float64; stubs = [b]",
    ),
}


def judge(engine: Callable[..., ModuleType], tmp_path: Path, head: str, healthy: Healthy) -> list[Drift]:
    module = engine(head + healthy.code)
    names: dict[str, Any] = {**vars(module), "bare": bare, "namespace": namespace}
    use = tmp_path / "use.py"
    use.write_text(healthy.use)
    exec(compile(healthy.use, use, "exec"), names)
    return [*stub_drift(*names["stubs"]), *stub_drift(*names["stubs"], runs=healthy.runs)]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_stub_has_no_drift(engine: Callable[..., ModuleType], tmp_path: Path, name: str) -> None:
    assert judge(engine, tmp_path, HEAD, HEALTHY[name]) == []


@pytest.mark.parametrize("name", TORCH_HEALTHY)
def test_a_healthy_module_has_no_drift(engine: Callable[..., ModuleType], tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    assert judge(engine, tmp_path, TORCH_HEAD, TORCH_HEALTHY[name]) == []


def test_the_tables_are_as_large_as_promised() -> None:
    assert len(FAULTS) + len(TORCH_FAULTS) >= 30
    assert len(HEALTHY) + len(TORCH_HEALTHY) >= 15


# How it may be asked


class Backend:
    def __init__(self, heads: int, block: int) -> None:
        self.heads = heads
        self.block = block

    def run(self) -> int:
        return self.heads


HERE = "tests/kernels/test_drift.py"


def test_a_stub_that_nothing_used_has_only_unread_attributes() -> None:
    found = stub_drift(bare(Backend, heads=1, block=2))
    assert [(drift.kind, drift.attribute) for drift in found] == [("unread", "block"), ("unread", "heads")]
    assert stub_drift(bare(Backend, heads=1, block=2), runs=()) == []


def test_drift_of_several_stubs_and_of_those_inside_is_one_list() -> None:
    inner = namespace(Backend, heads=1)
    outer = bare(Backend, heads=inner, block=1)
    other = bare(Backend, block=3)
    assert outer.run() is inner
    assert [drift.attribute for drift in stub_drift(outer, other)] == ["block", "heads.heads", "block"]


def test_what_lies_inside_an_unread_attribute_is_told_of_once() -> None:
    outer = bare(Backend, heads=1, block=namespace(Backend, heads=1))
    outer.run()
    assert [drift.attribute for drift in stub_drift(outer)] == ["block"]


def test_a_hand_made_object_is_judged_by_source() -> None:
    made = object.__new__(Backend)
    made.head = 1
    unknown, missing = stub_drift(made, runs=["run"])
    assert (unknown.kind, unknown.attribute) == ("unknown", "head")
    assert (missing.kind, missing.attribute) == ("missing", "heads")
    with pytest.raises(KernelsError, match="nobody watched the reads of this Backend") as caught:
        stub_drift(made)
    assert 'runs=("forward",)' in caught.value.fix


def test_by_source_no_default_factory_is_called() -> None:
    def allocate() -> object:
        raise RuntimeError("no device")

    @dataclass
    class Config:
        size: int
        buffer: object = dataclasses.field(default_factory=allocate)

        def run(self) -> object:
            return self.buffer

    for stub in (bare(Config, size=1), namespace(Config, size=1)):
        assert [drift.attribute for drift in stub_drift(stub, runs=["run"])] == ["size"]


def test_by_source_a_promise_of_a_protocol_is_missing() -> None:
    class Reader(Protocol):
        def read(self) -> int: ...

    class Layer:
        def __init__(self, reader: Reader) -> None:
            self.reader = reader

        def run(self) -> int:
            return self.reader.read()

    (drift,) = stub_drift(bare(Layer, reader=namespace(Reader)), runs=["run"])
    assert (drift.kind, drift.owner, drift.attribute) == ("missing", "Reader", "reader.read")


@pytest.mark.parametrize(
    ("stubs", "runs", "problem"),
    [
        ((), None, "no stub is given"),
        ((3,), None, "nobody watched the reads of this int"),
        ((bare(Backend),), None, "the stub of Backend was given nothing, and nothing was read of it"),
        ((bare(Backend),), "run", "runs is 'run'"),
        ((bare(Backend),), ["runs"], "Backend has no method runs"),
        ((bare(Backend),), ["heads"], "Backend has no method heads"),
    ],
)
def test_where_there_is_nothing_to_judge_it_is_an_error(stubs: Any, runs: Any, problem: str) -> None:
    with pytest.raises(KernelsError, match=problem) as caught:
        stub_drift(*stubs, runs=runs)
    assert f"stub_drift, {HERE}:" in caught.value.where


def test_a_method_without_source_cannot_be_judged_by_source() -> None:
    scope: dict[str, Any] = {}
    exec("class Hidden:\n    def run(self):\n        return self.size", scope)
    with pytest.raises(KernelsError, match=r"the source of Hidden\.run cannot be found"):
        stub_drift(bare(scope["Hidden"]), runs=["run"])


def test_what_is_read_of_a_stub_in_its_own_test_counts() -> None:
    stub = bare(Backend, heads=1)
    assert stub.heads == 1
    assert stub_drift(stub) == []
