"""``namespace``: what a configuration's stub knows by itself, what it refuses, and what it says when it lacks more."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Optional, Protocol

import pytest

from testkit.errors import KernelsError
from testkit.kernels import StubError, bare, namespace, stub_drift

HERE = "tests/kernels/test_namespace.py"


@dataclass
class Parallel:
    size: int
    rank: int = 0


@dataclass
class Config:
    model: str
    parallel: Optional[Parallel] = None  # noqa: UP045  # one of the ways to write it
    block: int = 16
    tables: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return self.block * self.parallel.size  # reads the size

    @cached_property
    def name(self) -> str:
        return f"{self.model}-{self.block}"

    def total(self, number: int) -> int:
        return self.blocks * number

    @staticmethod
    def version() -> int:
        return 3


class Plain:
    flag = True
    scale = None

    def __init__(self, model: Parallel, heads: int = 8, *, name: str = "x", size: int | None = None) -> None:
        self.model = model
        self.heads = heads
        self.name = name
        self.layers = [1, 2]
        self.scale = heads**-0.5
        self.size = size or 3
        self.inner = Parallel(1)
        if heads > 100:
            self.flag = False


def test_it_is_a_simple_namespace_with_what_was_given() -> None:
    stub = namespace(Config, model="m")
    assert isinstance(stub, SimpleNamespace)
    assert vars(stub) == {"model": "m"}
    assert stub == SimpleNamespace(model="m")
    assert repr(stub) == "namespace(Config, model='m')"


def test_what_is_not_given_has_its_real_default() -> None:
    stub = namespace(Config, block=32)
    assert (stub.block, stub.tables, stub.parallel, stub.version()) == (32, [], None, 3)
    assert stub.tables is stub.tables
    assert namespace(Config).tables is not stub.tables


def test_constants_and_default_arguments_of_init_are_defaults() -> None:
    stub = namespace(Plain)
    assert (stub.heads, stub.name, stub.layers, stub.flag) == (8, "x", [1, 2], True)


@pytest.mark.parametrize("name", ["model", "scale", "size", "inner"])
def test_what_init_computes_is_not_guessed(name: str) -> None:
    """Not from the class either: ``scale`` is None there, and of no real instance."""
    with pytest.raises(StubError, match=rf"the stub of Plain has no {name} "):
        getattr(namespace(Plain), name)


class Rebinds:
    """Of no attribute is the default argument, or the constant, what a real instance has."""

    def __init__(self, a: Any = None, b: Any = 1, c: Any = 2, d: Any = 3, e: Any = 4) -> None:
        if a is None:
            a = 5
        b = b or 8
        c = c * 2
        if (d := d + 1) > 2:
            c += 1
        self.e = e
        self.e += 4
        self.f = 1
        self.f *= 2
        self.b = b
        self.c = c
        self.d = d
        self.a = a

    def run(self) -> list[Any]:
        return [self.a, self.b, self.c, self.d, self.e, self.f]


class RebindsOne:
    def __init__(self, a: Any = None) -> None:
        if a is None:
            a = 5
        self.a = a

    def run(self) -> Any:
        return self.a


class Doubles:
    def __init__(self, a: int = 2) -> None:
        self.a = a
        self.b = 3

    def __setattr__(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value * 2)

    def run(self) -> int:
        return self.a + self.b


class Counts:
    count = 0

    def __init__(self) -> None:
        self.count += 1

    def run(self) -> int:
        return self.count


@dataclass
class Grows:
    size: int = 1

    def __post_init__(self) -> None:
        self.size += 1

    def run(self) -> int:
        return self.size


@pytest.mark.parametrize(
    ("spec", "names"),
    [(Rebinds, "abcdef"), (RebindsOne, "a"), (Doubles, "ab"), (Counts, ["count"]), (Grows, ["size"])],
)
def test_a_default_that_no_real_instance_has_is_missing_and_is_found_by_source(spec: type, names: Any) -> None:
    stub = namespace(spec)
    for name in names:
        with pytest.raises(StubError, match=rf"the stub of {spec.__name__} has no {name} "):
            getattr(stub, name)
    assert {(d.kind, d.attribute) for d in stub_drift(namespace(spec), runs=["run"])} == {("missing", n) for n in names}


def test_a_generated_setattr_or_the_one_of_a_module_changes_no_value() -> None:
    @dataclass(frozen=True)
    class Frozen:
        size: int = 1

        def __post_init__(self) -> None:
            object.__setattr__(self, "block", 16)

    assert (namespace(Frozen).size, namespace(Frozen).block) == (1, 16)
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, heads: int = 8) -> None:
            super().__init__()
            self.heads = heads

    assert namespace(Layer).heads == 8


def test_an_argument_of_a_base_class_has_no_default_to_go_by() -> None:
    class Derived(Plain):
        def __init__(self) -> None:
            super().__init__(Parallel(1), heads=4)

    assert namespace(Derived).layers == [1, 2]
    with pytest.raises(StubError, match="has no heads"):
        _ = namespace(Derived).heads


def test_properties_and_methods_of_the_class_run_on_what_was_given() -> None:
    stub = namespace(Config, model="m", block=4, parallel={"size": 2})
    assert stub.blocks == 8
    assert stub.total(3) == 24
    assert stub.name == "m-4"


def test_a_value_may_be_given_for_a_property() -> None:
    assert namespace(Config, blocks=7).total(2) == 14


def test_a_missing_field_is_told_by_path_with_who_asked() -> None:
    stub = namespace(Config, parallel=namespace(Parallel))
    with pytest.raises(
        StubError, match=r"the stub of Config has no parallel\.size, an attribute of Parallel"
    ) as caught:
        _ = stub.blocks
    text = str(caught.value)
    assert "# reads the size" in text
    assert "size: int" in text
    assert "next: give it: namespace(Parallel, size=...)" in text


def test_a_missing_field_of_a_plain_namespace_is_told_by_path() -> None:
    with pytest.raises(StubError, match=r"the stub of Config has no parallel\.size, an attribute of a plain"):
        _ = namespace(Config, parallel=SimpleNamespace(rank=1)).blocks


def test_reads_by_default_and_hasattr_are_recorded() -> None:
    stub = namespace(Config, block=1)
    assert getattr(stub, "model", None) is None
    assert not hasattr(stub, "model")
    assert not hasattr(stub, "quantization")  # no configuration has it, so nothing is hidden
    found = stub_drift(stub)
    assert {(drift.kind, drift.attribute) for drift in found} == {("defaulted", "model"), ("unread", "block")}
    assert len(found) == 3  # two lines ask for it


# Nesting


@pytest.mark.parametrize("given", [{"size": 2}, SimpleNamespace(size=2), namespace(Parallel, size=2), Parallel(2)])
def test_a_nested_configuration_may_be_given_in_four_ways(given: Any) -> None:
    assert namespace(Config, parallel=given, block=4).blocks == 8


def test_a_dictionary_becomes_a_namespace_with_defaults_of_its_own() -> None:
    stub = namespace(Config, parallel={"size": 2})
    assert stub.parallel.rank == 0
    assert repr(stub.parallel) == "namespace(Parallel, size=2)"


@pytest.mark.parametrize("given", [{"sise": 2}, SimpleNamespace(sise=2)])
def test_names_are_checked_at_any_depth(given: Any) -> None:
    class Outer:
        def __init__(self, config: Config) -> None:
            self.config = config

    with pytest.raises(KernelsError, match=r"Parallel \(at config\.parallel\) has no attribute sise; nearest is size"):
        namespace(Outer, config={"parallel": given})
    with pytest.raises(KernelsError, match=r"Parallel \(at config\.parallel\) has no attribute sise"):
        namespace(Outer, config=SimpleNamespace(parallel=SimpleNamespace(sise=2)))


class Annotations:
    direct: Parallel
    text: "Parallel"  # noqa: UP037 - what is tested
    union: Parallel | None
    mapping: dict[str, int]
    unknown: "NoSuchClass"  # noqa: F821, UP037 - what is tested
    either: "Parallel | Config"  # noqa: UP037 - what is tested


class FromInit:
    def __init__(self, argument: Parallel, other: "Parallel | None" = None) -> None:  # noqa: UP037 - what is tested
        self.argument = argument
        self.other = other
        self.made = Parallel(1)
        self.table = dict[str, int]()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Annotations, "direct"),
        (Annotations, "text"),
        (Annotations, "union"),
        (FromInit, "argument"),
        (FromInit, "other"),
        (FromInit, "made"),
    ],
)
def test_the_class_of_a_nested_one_is_found(spec: type, name: str) -> None:
    assert getattr(namespace(spec, **{name: {"size": 2}}), name).rank == 0


@pytest.mark.parametrize(
    ("spec", "name"), [(Annotations, "mapping"), (Annotations, "unknown"), (Annotations, "either"), (FromInit, "table")]
)
def test_a_dictionary_stays_one_where_no_single_class_is_named(spec: type, name: str) -> None:
    assert getattr(namespace(spec, **{name: {"a": 1}}), name) == {"a": 1}


# Kinds of specs


class Reader(Protocol):
    size: int
    limit: int = 3

    def read(self) -> int: ...

    @property
    def ready(self) -> bool: ...


def test_a_protocol_knows_its_members_and_promises_no_values() -> None:
    stub = namespace(Reader, size=1)
    assert (stub.size, stub.limit) == (1, 3)
    for name in ("read", "ready"):
        with pytest.raises(StubError, match=f"has no {name}"):
            getattr(stub, name)
    with pytest.raises(KernelsError, match="Reader has no attribute siz; nearest is size"):
        namespace(Reader, siz=1)


class Shape(NamedTuple):
    rows: int
    columns: int = 2


class Mode(Enum):
    FAST = 1
    SLOW = 2


def test_named_tuples_and_enumerations_are_specs_too() -> None:
    assert namespace(Shape).columns == 2
    with pytest.raises(StubError, match=r"has no rows"):
        _ = namespace(Shape).rows
    assert namespace(Mode, SLOW=3).FAST is Mode.FAST
    with pytest.raises(KernelsError, match="Mode has no attribute FASTER; nearest is FAST"):
        namespace(Mode, FASTER=3)


def test_an_instance_gives_its_own_values_and_takes_others() -> None:
    real = Config("m", Parallel(4), block=2)
    real.added = 1  # type: ignore[attr-defined]
    stub = namespace(real, parallel={"rank": 1}, added=2)
    assert (stub.model, stub.block, stub.added) == ("m", 2, 2)
    assert (stub.parallel.size, stub.parallel.rank) == (4, 1)
    assert stub.blocks == 8
    with pytest.raises(KernelsError, match="Config has no attribute modle; nearest is model"):
        namespace(real, modle=1)


def test_a_module_is_an_instance_too() -> None:
    envs = ModuleType("envs")
    envs.TIMEOUT = 3  # type: ignore[attr-defined]
    assert namespace(envs).TIMEOUT == 3
    assert namespace(envs, TIMEOUT=4).TIMEOUT == 4
    with pytest.raises(KernelsError, match="module has no attribute TIMEOUTS"):
        namespace(envs, TIMEOUTS=4)


@pytest.mark.parametrize("spec", [None, 3, "Config", [1], object, object()])
def test_a_spec_that_names_nothing_is_refused(spec: Any) -> None:
    with pytest.raises(KernelsError, match=rf"which names nothing \(argument of namespace, {HERE}:\d+\)"):
        namespace(spec)


def test_a_stub_is_no_spec() -> None:
    with pytest.raises(KernelsError, match="spec is a stub"):
        namespace(bare(Config))
    with pytest.raises(KernelsError, match="spec is a stub"):
        namespace(namespace(Config))


def test_a_model_of_pydantic_has_its_defaults() -> None:
    pydantic: ModuleType = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", size=(int, ...))
    model = pydantic.create_model("Model", heads=(int, ...), inner=(inner, ...), t=(list, pydantic.Field([1])))
    stub = namespace(model, inner={"size": 2})
    assert (stub.t, stub.inner.size) == ([1], 2)
    with pytest.raises(StubError, match="has no heads"):
        _ = stub.heads
    with pytest.raises(KernelsError, match=r"Inner \(at inner\) has no attribute sise; nearest is size"):
        namespace(model, inner={"sise": 2})


# Afterwards


def test_the_test_that_made_it_is_held_to_its_names_and_other_code_is_not() -> None:
    stub = namespace(Config)
    with pytest.raises(KernelsError, match="Config has no attribute blokc; nearest is block"):
        stub.blokc = 1
    stub.block = 1
    exec(compile("stub.seen = True", "elsewhere.py", "exec"), {"stub": stub})
    assert (stub.block, stub.seen) == (1, True)


def test_copies_know_the_spec_and_are_watched_with_the_original() -> None:
    stub = namespace(Config, model=["m"], block=4)
    shallow, deep = copy.copy(stub), copy.deepcopy(stub)
    assert shallow.model is stub.model
    assert deep.model == ["m"]
    assert deep.model is not stub.model
    assert deep.tables == []
    assert deep.block == 4
    assert stub_drift(stub) == []


def test_pickled_it_is_a_plain_namespace_of_what_was_given() -> None:
    assert pickle.loads(pickle.dumps(namespace(Config, block=4))) == SimpleNamespace(block=4)
