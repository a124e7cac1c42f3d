"""Which names a class has, read from its source: every way to set one, where it is, and what no source tells."""

from __future__ import annotations

import contextlib
import gc
import linecache
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import pytest

from testkit.kernels._known import Origin, known_of, nearest, reached

NAMES = ("first", "second")


def outside(target: Any, size: int) -> None:
    target.from_outside = size


class Base:
    inherited_default = 1

    def __init__(self, size: int) -> None:
        self.from_base = size
        self._fill(size)

    def _fill(self, size: int) -> None:
        raise NotImplementedError


class Everything(Base):
    """Each attribute is set in another way."""

    annotated: int
    LETTERS = ("x", "y")

    def __init__(self, size: int, options: dict[str, int]) -> None:
        super().__init__(size)
        self.plain = size
        self.one, (self.two, *self.rest) = 1, (2, 3)
        self.with_type: int = size
        self.chained = self.also = 0
        for self.counter in range(2):
            pass
        with open("/dev/null") as self.file:
            pass
        for name in NAMES:
            setattr(self, name, None)
        for name in self.LETTERS:
            object.__setattr__(self, name, None)
        for name, value in (("left", 1), ("right", 2)):
            setattr(self, name, value)
        for number, name in enumerate(["up", "down"]):
            setattr(self, name, number)
        for name, value in {"north": 1}.items():
            setattr(self, name, value)
        super().__setattr__("by_super", 1)
        self.__dict__.update(by_update=1, **options)
        self.__dict__.update({"by_mapping": 1})
        self.__dict__["by_key"] = 1
        vars(self)["by_vars"] = 1
        for number in range(size):
            setattr(self, f"layer_{number}", number)
        self.__secret = 3
        self.prop = 4
        outside(self, size)
        myself = self
        myself.by_alias = 1
        if size > 1:
            self.sometimes = 1
        if size > 2:
            self.either = 1
        else:
            self.either = 2
        if size > 3:
            self.or_fails = 1
        else:
            raise ValueError(size)
        [setattr(self, name, 0) for name in ("in_list",)]

    def _fill(self, size: int) -> None:
        self.by_helper = size

    @property
    def prop(self) -> int:
        return self._prop

    @prop.setter
    def prop(self, value: int) -> None:
        self._prop = value

    @cached_property
    def cached(self) -> int:
        self.later_by_cache = 1
        return 1

    def later(self) -> None:
        self.only_later = 1


SURE = [
    *("from_base", "plain", "one", "two", "rest", "with_type", "chained", "also", "file", "left", "right"),
    *("by_super", "by_update", "by_mapping", "by_key", "by_vars", "_Everything__secret", "_prop"),
    *("from_outside", "by_alias", "either", "or_fails", "by_helper"),
]
NOT_SURE = [
    *("counter", "first", "second", "x", "y", "up", "down", "north", "sometimes", "in_list"),
    *("only_later", "later_by_cache"),
]
OF_THE_CLASS = ["annotated", "inherited_default", "LETTERS", "prop", "cached", "later"]


def test_every_way_to_set_a_name_is_found() -> None:
    names = known_of(Everything).names
    assert set(SURE + NOT_SURE + OF_THE_CLASS) <= set(names)


@pytest.mark.parametrize("name", SURE)
def test_what_construction_always_sets_is_sure(name: str) -> None:
    origin = known_of(Everything).names[name]
    assert origin.early
    assert origin.sure


@pytest.mark.parametrize("name", NOT_SURE)
def test_what_a_branch_or_another_method_sets_is_not_sure(name: str) -> None:
    assert not known_of(Everything).names[name].sure


def test_an_update_with_unknown_names_opens_the_class() -> None:
    # by `**options` in the class above
    assert [str(place).rpartition(":")[0] for place in known_of(Everything).opens] == ["tests/kernels/test_known.py"]


def test_names_from_an_f_string_are_known_by_their_pattern() -> None:
    known = known_of(Everything)
    assert known.has_pattern("layer_12")
    assert not known.has_pattern("layers")


def test_an_origin_has_file_line_and_source() -> None:
    origin = known_of(Everything).names["by_helper"]
    line = linecache.getlines(__file__)[origin.place.line - 1]
    assert line.strip() == "self.by_helper = size"
    assert str(origin) == f"tests/kernels/test_known.py:{origin.place.line}: self.by_helper = size"
    assert (origin.owner, origin.function) == ("Everything", "Everything._fill")


def test_an_origin_outside_of_construction_says_who_sets_it() -> None:
    text = str(known_of(Everything).names["only_later"])
    assert "self.only_later = 1 (in Everything.later, which construction does not call)" in text


def test_a_statement_of_several_lines_is_shown_as_one() -> None:
    class Long:
        def __init__(self) -> None:
            self.table = [
                1,
                2,
            ]

    assert str(known_of(Long).names["table"]).endswith("self.table = [ 1, 2, ]")


class OwnNew:
    def __new__(cls, size: int) -> OwnNew:
        made = super().__new__(cls)
        made.size = size
        return made


def test_what_new_sets_on_the_new_instance_is_known() -> None:
    assert known_of(OwnNew).names["size"].sure


def test_what_a_class_replaces_in_construction_is_known() -> None:
    class Default:
        scale = None
        kept = 1

        def __init__(self) -> None:
            self.scale = 2

    assert known_of(Default).shadowed == {"scale"}


class Slots:
    __slots__ = ("__private", "filled", "left_empty")

    def __init__(self) -> None:
        self.filled = 1
        self.__private = 2


def test_slots_are_names_and_private_ones_are_mangled() -> None:
    names = known_of(Slots).names
    assert {"filled", "left_empty", "_Slots__private"} <= set(names)
    assert names["filled"].sure
    assert not names["left_empty"].sure


@dataclass
class Fields:
    required: int
    listed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.derived = self.required * 2


class Members(Protocol):
    size: int

    def read(self) -> int: ...


class Shape(NamedTuple):
    rows: int


class Mode(Enum):
    FAST = 1


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Fields, {"required", "listed", "derived"}),
        (Members, {"size", "read"}),
        (Shape, {"rows", "count"}),
        (Mode, {"FAST", "name", "value"}),
    ],
)
def test_special_classes_have_the_names_that_they_declare(cls: type, names: set[str]) -> None:
    known = known_of(cls)
    assert names <= set(known.names)
    assert not known.accepts("no_such_name")


def test_annotations_are_a_promise_in_a_protocol_only() -> None:
    class Declared:
        size: int

    class Started:
        size: int

        def __init__(self) -> None:
            self.other = 1

    assert known_of(Members).names["size"].sure
    assert not known_of(Declared).names["size"].sure
    assert not known_of(Started).names["size"].sure


class Lacking:
    """No instance has the attributes named ``no_...``."""

    def __init__(self) -> None:
        self.no_del = self.no_delattr = self.no_pop = self.no_pop_of_vars = self.no_key = self.no_loop = 1
        del self.no_del
        delattr(self, "no_delattr")
        self.__dict__.pop("no_pop")
        vars(self).pop("no_pop_of_vars", None)
        del self.__dict__["no_key"]
        for name in ("no_loop",):
            delattr(self, name)
        with contextlib.suppress(ValueError):
            self.no_suppressed = int("x")
        self._generate()
        self._wait().close()
        self._stream()
        self.back = 1
        del self.back
        self.back = 2
        self.no_longer = 1
        del self.no_longer
        if not vars(self):
            self.no_longer = 2

    def _generate(self) -> Iterator[int]:
        self.no_generated = 1
        yield 1

    async def _wait(self) -> None:
        self.no_awaited = 1

    async def _stream(self) -> AsyncIterator[int]:
        self.no_streamed = 1
        yield 1


def test_what_real_instances_lack_is_known_and_not_sure() -> None:
    names = known_of(Lacking).names
    lacking = {name for name in names if name.startswith("no_")}
    assert len(lacking) == 11
    assert not {name for name in lacking if hasattr(Lacking(), name)}
    assert not {name for name in lacking if names[name].sure}
    assert names["back"].sure


@dataclass
class Partly:
    given: int
    with_default: int = field(init=False, default=1)
    made: int = field(init=False)
    never: int = field(init=False)

    def __post_init__(self) -> None:
        self.made = 1


def test_a_field_that_the_constructor_does_not_take_is_sure_only_where_something_sets_it() -> None:
    names, real = known_of(Partly).names, Partly(1)
    fields = ("given", "with_default", "made", "never")
    assert [name for name in fields if names[name].sure] == [name for name in fields if hasattr(real, name)]
    assert not names["never"].sure


def test_a_generator_that_is_asked_for_by_name_runs() -> None:
    (visit,) = reached(Lacking, ["_generate"])
    assert visit.sure


def test_a_class_whose_init_has_no_source_accepts_every_name() -> None:
    scope: dict[str, Any] = {}
    exec("class Hidden:\n    def __init__(self):\n        self.size = 1", scope)
    known = known_of(scope["Hidden"])
    assert known.opens
    assert known.accepts("size")


def test_names_are_read_once_a_class_and_go_with_it() -> None:
    class Short:
        def __init__(self) -> None:
            self.size = 1

    assert known_of(Short) is known_of(Short)
    watch = weakref.ref(Short)
    del Short
    gc.collect()
    assert watch() is None


def test_helpers_that_call_each_other_are_read_once() -> None:
    class Round:
        def __init__(self) -> None:
            self.first()

        def first(self) -> None:
            self.second()

        def second(self) -> None:
            self.size = 1
            self.first()

    assert [visit.function.__name__ for visit in reached(Round, ["__init__"])] == ["__init__", "first", "second"]
    assert known_of(Round).names["size"].sure


def test_a_helper_of_the_subclass_is_followed_from_the_base() -> None:
    assert known_of(Everything).names["by_helper"].function == "Everything._fill"
    assert "by_helper" not in known_of(Base).names


@pytest.mark.parametrize(
    ("name", "like"), [("use_fastpath", "use_fast_path"), ("scale", "softmax_scale"), ("zzz", ""), ("sc", "")]
)
def test_the_nearest_name_is_alike_or_contains_it(name: str, like: str) -> None:
    assert nearest(name, ["use_fast_path", "softmax_scale", "block"]) == like


def test_an_origin_without_a_place_names_the_class() -> None:
    assert str(Origin("Config", "field", None)) == "class Config"


def real_objects() -> list[Any]:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    weights = [nn.Parameter(torch.ones(2))]
    return [
        nn.Linear(2, 2),
        nn.Conv2d(1, 1, 1),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2),
        nn.BatchNorm1d(2),
        nn.Embedding(2, 2),
        nn.CTCLoss(),
        torch.optim.SGD(weights),
        torch.utils.data.DataLoader([1, 2]),
        torch.distributions.Normal(0, 1),
    ]


def test_real_instances_of_a_large_library_have_no_other_names_than_the_known_ones() -> None:
    """And have each that is sure: what is read from source agrees with what construction did."""
    for real in real_objects():
        known = known_of(type(real))
        names = set(vars(real))
        for part in ("_parameters", "_buffers", "_modules"):
            names |= set(getattr(real, part, {}))
        assert not known.opens, type(real)
        assert not {name for name in names if not known.accepts(name)}, type(real)
        assert not {name for name, origin in known.names.items() if origin.sure and not hasattr(real, name)}
