"""``bare``: what a stub keeps of its class, what it refuses, and what it says when it lacks something."""

from __future__ import annotations

import abc
import copy
import dataclasses
import gc
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol

import pytest

from testkit.errors import KernelsError
from testkit.kernels import StubError, bare, namespace, stub_drift

HERE = "tests/kernels/test_bare.py"


def line_of(text: str) -> int:
    """The line of this file that ends with ``text``."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(text))


class Backend:
    kind = "paged"

    def __init__(self, heads: int, scale: float) -> None:
        self.heads = heads
        self.scale = scale
        self.workspace = [0] * 10**12

    def run(self) -> float:
        return self.heads * self.scale  # reads the scale

    @property
    def block(self) -> int:
        return self.config.block_size  # reads the block


class Configured(Backend):
    def __init__(self, config: Any) -> None:
        super().__init__(1, 1.0)
        self.config = config


def test_real_methods_run_on_an_instance_that_no_init_made() -> None:
    stub = bare(Backend, heads=2, scale=0.5)
    assert stub.run() == 1.0
    assert isinstance(stub, Backend)
    assert stub.kind == "paged"


def test_the_class_looks_like_the_real_one() -> None:
    stub = bare(Backend, heads=2)
    assert stub.__class__ is Backend
    assert type(stub).__name__ == "Backend"
    assert vars(stub) == {"heads": 2}
    assert type(bare(Backend)) is type(stub)


def test_exact_is_of_the_class_itself() -> None:
    stub = bare(Backend, exact=True, heads=2)
    assert type(stub) is Backend
    with pytest.raises(AttributeError, match=r"^'Backend' object has no attribute 'scale'$"):
        stub.run()
    with pytest.raises(KernelsError, match="has no attribute head; nearest is heads"):
        bare(Backend, exact=True, head=2)


def test_a_missing_attribute_is_told_with_who_asked_and_who_would_have_set_it() -> None:
    asked, would = line_of("# reads the scale"), line_of("self.scale = scale")
    with pytest.raises(StubError, match="the stub of Backend has no scale") as caught:
        bare(Backend, heads=2).run()
    assert str(caught.value).splitlines() == [
        f"kernels: the stub of Backend has no scale (read in run, {HERE}:{asked})",
        f"  asked for  {HERE}:{asked}: return self.heads * self.scale # reads the scale",
        f"  a real one {HERE}:{would}: self.scale = scale",
        f"  the stub   {HERE}:{line_of('bare(Backend, heads=2).run()')}: bare(Backend, heads=2).run()",
        "next: give it: bare(Backend, scale=...)",
    ]


def test_a_missing_attribute_is_an_attribute_error() -> None:
    stub = bare(Backend)
    assert not hasattr(stub, "heads")
    assert getattr(stub, "heads", 3) == 3
    with pytest.raises(AttributeError, match="has no heads"):
        _ = stub.heads


def test_a_name_that_no_code_sets_is_said_to_be_unknown_when_it_is_read() -> None:
    with pytest.raises(StubError, match="a real one has no headz either, by its source; nearest is heads"):
        _ = bare(Backend).headz


def test_a_property_does_not_hide_what_it_lacks() -> None:
    """The path is what was asked for, not the property around it."""
    with pytest.raises(StubError, match=r"has no config.block_size, an attribute of Config") as caught:
        _ = bare(Configured, config=namespace(Config)).block
    assert f"asked for  {HERE}:{line_of('# reads the block')}" in str(caught.value)
    with pytest.raises(StubError, match=r"the stub of Configured has no config \("):
        _ = bare(Configured).block


def test_a_plain_namespace_in_a_property_is_told_by_path_and_nearest_name() -> None:
    inner = SimpleNamespace(block_sise=16)
    with pytest.raises(StubError, match=r"has no config.block_size, an attribute of a plain SimpleNamespace") as caught:
        _ = bare(Configured, config=inner).block
    assert "nearest is block_sise" in str(caught.value)


def test_an_error_of_the_property_itself_stays_as_it_is() -> None:
    with pytest.raises(AttributeError, match="'int' object has no attribute 'block_size'"):
        _ = bare(Configured, config=3).block


class Config:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size


def test_a_path_is_the_one_that_was_walked_last() -> None:
    inner = bare(Config)
    left, right = bare(Configured, config=inner), bare(Wrapper, inner=inner)
    with pytest.raises(StubError, match=r"the stub of Configured has no config\.block_size"):
        _ = left.config.block_size
    with pytest.raises(StubError, match=r"the stub of Wrapper has no inner\.block_size"):
        _ = right.inner.block_size


def test_stubs_that_hold_each_other_have_a_path_with_an_end() -> None:
    left, right = bare(Configured), bare(Configured)
    left.config = right
    right.config = left
    with pytest.raises(StubError, match=r"has no (config\.)?heads"):
        _ = left.config.config.heads


# Names


def test_an_unknown_name_is_refused_with_the_nearest_and_where_it_is_set() -> None:
    would, made = line_of("self.scale = scale"), line_of("# a slip")
    with pytest.raises(KernelsError, match="Backend has no attribute scael; nearest is scale") as caught:
        bare(Backend, scael=1)  # a slip
    assert f"{HERE}:{would}: self.scale = scale (argument of bare, {HERE}:{made})" in str(caught.value)
    assert "next: write scale, or annotate scael in a subclass if other code sets it" in str(caught.value)


def test_the_test_that_made_the_stub_is_held_to_its_names_and_other_code_is_not() -> None:
    stub = bare(Backend)
    with pytest.raises(KernelsError, match="has no attribute scael"):
        stub.scael = 1
    stub.scale = 1
    elsewhere = compile("stub.packed = True", "elsewhere.py", "exec")
    exec(elsewhere, {"stub": stub})
    assert stub.packed


def test_a_subclass_may_declare_a_name_that_other_code_sets() -> None:
    class Packed(Backend):
        packed: bool

    assert bare(Packed, packed=True).packed


# Kinds of classes


@dataclass(frozen=True)
class Frozen:
    heads: int
    block: int = 16
    tables: list[int] = field(default_factory=list)

    def total(self) -> int:
        return self.heads * self.block + len(self.tables)


@dataclass
class Slotted:
    __slots__ = ("heads", "sizes")
    heads: int
    sizes: list[int]


SLOTTED = dataclasses.make_dataclass(
    "SLOTTED", ["heads", ("block", int, 16), ("tables", list, field(default_factory=list))], slots=True, frozen=True
)


@pytest.mark.parametrize("cls", [Frozen, SLOTTED])
def test_dataclasses_have_their_real_defaults(cls: Any) -> None:
    stub = bare(cls, heads=2)
    assert (stub.heads, stub.block, stub.tables) == (2, 16, [])
    assert stub.tables is stub.tables
    assert bare(cls).tables is not stub.tables
    with pytest.raises(dataclasses.FrozenInstanceError, match="heads"):
        stub.heads = 3
    with pytest.raises(StubError, match="has no heads"):
        _ = bare(cls).heads


def test_a_bare_dataclass_equals_a_real_one() -> None:
    assert bare(Frozen, heads=2, block=16, tables=[]) == Frozen(2)
    assert dataclasses.replace(bare(Frozen, heads=2), block=1) == Frozen(2, 1)


def test_slots_take_what_they_have_room_for() -> None:
    stub = bare(Slotted, heads=1)
    assert stub.heads == 1
    with pytest.raises(StubError, match="has no sizes"):
        _ = stub.sizes
    assert not hasattr(stub, "__dict__")


def test_a_method_cannot_be_given_to_a_class_with_slots_only() -> None:
    class Small:
        __slots__ = ("heads",)

        def run(self) -> int:
            return 1

    with pytest.raises(KernelsError, match=r"run of Small cannot be set to a function: .*read-only"):
        bare(Small, run=lambda: 2)


def test_a_method_can_be_replaced() -> None:
    assert bare(Backend, run=lambda: 7).run() == 7


def test_a_property_without_a_setter_is_refused_with_what_it_reads() -> None:
    with pytest.raises(KernelsError, match="block of Configured is a property without a setter") as caught:
        bare(Configured, block=16)
    assert "next: give what it reads: config.block_size" in str(caught.value)


class WithSetter:
    def __init__(self, scale: float) -> None:
        self.factor = 2
        self.scale = scale

    @property
    def scale(self) -> float:
        return self._scale

    @scale.setter
    def scale(self, value: float) -> None:
        self._scale = value * self.factor


def test_a_setter_runs_after_the_plain_attributes_are_there() -> None:
    assert bare(WithSetter, scale=3, factor=4).scale == 12
    with pytest.raises(StubError, match="the stub of WithSetter has no factor"):
        bare(WithSetter, scale=3)


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_getattr_of_the_class_answers_as_on_a_real_one() -> None:
    stub = bare(Wrapper, inner=SimpleNamespace(heads=2))
    assert stub.heads == 2
    with pytest.raises(StubError, match="the stub of Wrapper has no depth") as caught:
        _ = stub.depth
    assert "__getattr__ 'types.SimpleNamespace' object has no attribute 'depth'" in str(caught.value)


def test_getattr_that_needs_what_is_missing_does_not_recurse() -> None:
    with pytest.raises(StubError, match=r"the stub of Wrapper has no inner \(read in __getattr__"):
        _ = bare(Wrapper).heads


def test_getattr_called_by_name_is_the_real_one() -> None:
    assert bare(Wrapper, inner=SimpleNamespace(heads=2)).__getattr__("heads") == 2
    with pytest.raises(AttributeError, match="has no attribute '__getattr__'"):
        bare(Backend).__getattr__("heads")


def test_a_property_that_fails_falls_to_getattr_as_on_a_real_one() -> None:
    class Falls:
        @property
        def heads(self) -> int:
            raise AttributeError("not yet")

        def __getattr__(self, name: str) -> str:
            return f"from getattr: {name}"

    assert bare(Falls).heads == "from getattr: heads"


def test_protocols_of_python_see_a_plain_absence() -> None:
    with pytest.raises(AttributeError, match=r"^'Backend' object has no attribute '__array__'$"):
        _ = bare(Backend).__array__
    assert not hasattr(bare(Wrapper, inner=3), "__array_interface__")


DELETED: list[object] = []


class Handle:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        DELETED.append(self.handle)


def test_what_was_never_acquired_is_not_released() -> None:
    stub = bare(Handle)
    del stub
    gc.collect()  # an error in __del__ would be a warning, and so an error
    stub = bare(Handle, handle=3)
    del stub
    assert DELETED == []
    Handle.__del__(bare(Handle, handle=4))
    assert DELETED == [4]


class Session:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __enter__(self) -> Session:
        self.file = "open"
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(self.file)


def test_a_context_manager_works_and_tells_what_a_half_made_one_lacks() -> None:
    with bare(Session, log=[]) as session:
        pass
    assert session.log == ["open"]
    with pytest.raises(StubError, match=r"in Session.__enter__, which construction does not call"):
        bare(Session, log=[]).__exit__()
    with pytest.raises(StubError, match="has no log") as caught, bare(Session):
        raise ValueError("the body's own")
    assert isinstance(caught.value.__context__, ValueError)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def forward(self) -> int: ...

    def run(self) -> int:
        return 1


def test_an_abstract_class_can_be_made_for_its_real_methods() -> None:
    assert bare(Abstract).run() == 1
    with pytest.raises(KernelsError, match="Abstract cannot be made bare: Can't instantiate"):
        bare(Abstract, exact=True)


def test_a_registry_of_subclasses_does_not_see_the_generated_class() -> None:
    seen: list[type] = []

    class Meta(type):
        def __init__(cls, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.append(cls)

    class Registered(metaclass=Meta):
        def __init_subclass__(cls) -> None:
            seen.append(cls)

        def __init__(self) -> None:
            self.size = 1

    assert bare(Registered, size=2).size == 2
    assert seen == [Registered]


def test_copies_are_watched_with_the_original() -> None:
    stub = bare(Backend, heads=[2], scale=1.0)
    for copied in (copy.copy(stub), copy.deepcopy(stub)):
        assert copied.heads == [2]
        with pytest.raises(StubError, match="has no workspace"):
            _ = copied.workspace
    assert [drift.attribute for drift in stub_drift(stub) if drift.kind == "unread"] == ["scale"]


class Number(int):
    pass


class Listed(list[int]):
    pass


class Mode(Enum):
    FAST = 1


class Point(NamedTuple):
    x: int


class Reader(Protocol):
    size: int


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (3, "3 is no class"),
        (Mode, "Mode is an enumeration"),
        (Reader, "Reader is a protocol"),
        (Point, "Point is a value"),
        (Number, "Number is a value"),
        (Listed, "Listed cannot be made bare: object.__new__"),
        (bool, "bool is a value"),
        (type(bare(Backend)), "Backend is the class of a stub"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_made_is_refused_by_name(cls: Any, problem: str) -> None:
    with pytest.raises(KernelsError, match=problem) as caught:
        bare(cls)
    assert f"argument of bare, {HERE}:" in str(caught.value)


def test_a_class_that_sets_names_from_its_arguments_takes_every_name() -> None:
    class Open:
        def __init__(self, **options: Any) -> None:
            for name, value in options.items():
                setattr(self, name, value)

    assert bare(Open, anything=1).anything == 1


# pydantic: a model of its own where it is not installed


class FakeField:
    def __init__(self, required: bool, default: Any = None, factory: Any = None) -> None:
        self.required, self.default, self.default_factory = required, default, factory

    def is_required(self) -> bool:
        return self.required

    def get_default(self) -> Any:
        return self.default


class FakeModel:
    """As pydantic does it: values in ``__dict__``, the rest in slots, and a ``__setattr__`` that needs them."""

    __slots__ = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
    __pydantic_fields__: ClassVar[dict[str, FakeField]] = {
        "heads": FakeField(True),
        "block": FakeField(False, 16),
        "t": FakeField(False, None, list),
    }
    __private_attributes__: ClassVar[dict[str, Any]] = {}
    heads: int

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("frozen")


def real_model() -> type:
    pydantic: ModuleType = pytest.importorskip("pydantic")
    return pydantic.create_model("Model", heads=(int, ...), block=(int, 16), t=(list, pydantic.Field([])))


@pytest.mark.parametrize("model", [lambda: FakeModel, real_model], ids=["fake", "pydantic"])
def test_models_have_their_fields_and_defaults(model: Any) -> None:
    cls = model()
    stub = bare(cls, heads=2)
    assert (stub.heads, stub.block, stub.t) == (2, 16, [])
    assert stub.__pydantic_fields_set__ == {"heads"}
    assert vars(stub) == {"heads": 2, "block": 16, "t": []}
    with pytest.raises(StubError, match="has no heads"):
        _ = bare(cls).heads
    with pytest.raises(KernelsError, match="has no attribute head; nearest is heads"):
        bare(cls, head=1)


def test_attrs_classes_have_their_fields_and_defaults() -> None:
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Shape:
        rows: int
        columns: int = 2
        tables: list[int] = attrs.field(factory=list)
        total: int = attrs.field(default=attrs.Factory(lambda self: self.rows * 3, takes_self=True))

    stub = bare(Shape, rows=2)
    assert (stub.rows, stub.columns, stub.tables, stub.total) == (2, 2, [], 6)
    with pytest.raises(StubError, match="has no rows"):
        _ = bare(Shape).rows


# nn.Module, and the case that this is for


@pytest.fixture
def layer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A layer that was refactored: it reads one more field of its configuration, and another with a default."""
    pytest.importorskip("torch")
    (tmp_path / "refactored_layer.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "\n"
        "class KernelConfig:\n"
        "    def __init__(self, linear_backend='auto'):\n"
        "        self.linear_backend = linear_backend\n"
        "\n"
        "class Config:\n"
        "    def __init__(self, model_config, use_fast_path):\n"
        "        self.model_config = model_config\n"
        "        self.kernel_config = KernelConfig()\n"
        "        self.use_fast_path = use_fast_path\n"
        "\n"
        "class QuantLinear(nn.Module):\n"
        "    def __init__(self, cfg):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(2, 2))\n"
        "        self.register_buffer('scale', torch.ones(2))\n"
        "        self.cfg = cfg\n"
        "\n"
        "    @property\n"
        "    def backend(self):\n"
        "        return self.cfg.kernel_config.linear_backend\n"
        "\n"
        "    def fast(self):\n"
        "        return getattr(self.cfg, 'use_fast_path', False)\n"
        "\n"
        "    def forward(self, x):\n"
        "        y = x @ self.weight\n"
        "        return y * 2 if self.fast() else y\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("refactored_layer")
    del sys.modules["refactored_layer"]


def test_the_nested_field_of_a_refactoring_is_named_and_not_the_property(layer: Any) -> None:
    """Reported as https://github.com/vllm-project/vllm/pull/54132: torch says that there is no ``backend``."""
    stub = bare(layer.QuantLinear, cfg=namespace(layer.Config, model_config=None))
    with pytest.raises(
        StubError, match=r"has no cfg\.kernel_config, an attribute of Config \(read in backend"
    ) as caught:
        _ = stub.backend
    text = str(caught.value)
    assert "refactored_layer.py:23: return self.cfg.kernel_config.linear_backend" in text
    assert "refactored_layer.py:11: self.kernel_config = KernelConfig()" in text
    assert f"the stub   {HERE}" in text
    with pytest.raises(StubError, match=r"has no cfg\.kernel_config, an attribute of a plain SimpleNamespace"):
        _ = bare(layer.QuantLinear, cfg=SimpleNamespace(model_config=None)).backend


def test_a_misspelt_field_of_a_configuration_is_refused(layer: Any) -> None:
    with pytest.raises(KernelsError, match=r"Config has no attribute use_fastpath; nearest is use_fast_path, .*py:12"):
        namespace(layer.Config, use_fastpath=True)


def test_a_default_that_hides_a_field_is_told_on_request(layer: Any) -> None:
    import torch

    weight = torch.nn.Parameter(torch.ones(2, 2))
    stub = bare(layer.QuantLinear, weight=weight, cfg=namespace(layer.Config))
    assert stub(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
    (drift,) = stub_drift(stub)
    assert (drift.kind, drift.owner, drift.attribute) == ("defaulted", "Config", "cfg.use_fast_path")
    assert drift.where.endswith("refactored_layer.py:26")
    assert drift.origin.endswith("refactored_layer.py:12: self.use_fast_path = use_fast_path")


def test_a_module_has_its_parameters_buffers_and_machinery(layer: Any) -> None:
    import torch

    parameter = torch.nn.Parameter(torch.ones(2, 2))
    stub = bare(layer.QuantLinear, weight=parameter, scale=torch.ones(2), cfg=namespace(layer.Config))
    assert [name for name, _ in stub.named_parameters()] == ["weight"]
    assert [name for name, _ in stub.named_buffers()] == ["scale"]
    assert stub.to(torch.float64).scale.dtype is torch.float64
    assert "QuantLinear" in repr(stub)
    assert stub.training
    with pytest.raises(StubError, match=r"has no weight \(read in forward"):
        bare(layer.QuantLinear)(torch.ones(1, 2))


def test_an_exact_module_is_prepared_too(layer: Any) -> None:
    import torch

    stub = bare(layer.QuantLinear, exact=True, weight=torch.nn.Parameter(torch.ones(2, 2)), scale=torch.ones(2))
    assert type(stub) is layer.QuantLinear
    assert set(stub.state_dict()) == {"weight", "scale"}


def test_a_value_that_a_module_cannot_take_is_refused_by_name(layer: Any) -> None:
    import torch

    class Half(torch.nn.Module):
        scale = None

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

    with pytest.raises(KernelsError, match=r"scale of Half cannot be set to a Tensor: .*already exists"):
        bare(Half, scale=torch.ones(2))
