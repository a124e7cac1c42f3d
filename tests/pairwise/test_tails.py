"""What a fixture does after its yield, as its source tells."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testkit.pairwise._tails import declines, tail_of


def release() -> None:
    deeper()


def deeper() -> None:
    release()  # a call that leads back
    gc.collect()


def restore() -> None:
    pass


@contextmanager
def collecting() -> Iterator[None]:
    yield
    gc.collect()


class Pool:
    def collect(self) -> None:
        pass

    @staticmethod
    def shut() -> None:
        gc.collect()


pool = Pool()


def cleans(wanted: bool) -> Iterator[None]:
    yield
    if wanted:
        release()


def cleans_by_what_it_imports() -> Iterator[None]:
    from gc import collect as sweep

    yield
    sweep()


def cleans_by_a_static_method() -> Iterator[None]:
    yield
    Pool.shut()


def cleans_by_a_name_alone(torch: Any) -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def restores() -> Iterator[None]:
    release()  # before the test, so it is not its tail
    yield
    restore()
    pool.collect()


def tries() -> Iterator[None]:
    try:
        yield
    finally:
        release()


def holds() -> Iterator[None]:
    with collecting():
        yield


def delegates() -> Iterator[None]:
    yield from restores()


def ends_with_its_yield() -> Iterator[None]:
    restore()
    yield


def has_a_function_inside() -> Iterator[None]:
    def finish() -> Iterator[None]:
        yield
        gc.collect()

    yield


class Methods:
    def cleans(self) -> Iterator[None]:
        text = """
not indented"""
        yield
        text.strip()
        gc.collect()


@pytest.mark.parametrize(
    ("function", "calls", "inside"),
    [
        (cleans, {"release": ("gc.collect",)}, ""),
        (cleans_by_what_it_imports, {"sweep": ("gc.collect",)}, ""),
        (cleans_by_a_static_method, {"Pool.shut": ("gc.collect",)}, ""),
        (cleans_by_a_name_alone, {"torch.cuda.empty_cache": ("torch.cuda.empty_cache",)}, ""),
        (restores, {"restore": (), "pool.collect": ()}, ""),
        (tries, {"release": ("gc.collect",)}, "try"),
        (holds, {"collecting": ("gc.collect",)}, "with"),
        (delegates, {}, "yield from"),
        (Methods().cleans, {"text.strip": (), "gc.collect": ("gc.collect",)}, ""),
    ],
)
def test_a_tail_tells_its_calls_and_which_of_them_clean_up(
    function: Callable[..., Any], calls: dict[str, tuple[str, ...]], inside: str
) -> None:
    tail = tail_of(function)
    assert tail is not None
    assert (tail.calls, tail.inside) == (calls, inside)


@pytest.mark.parametrize("function", [ends_with_its_yield, has_a_function_inside, restore, gc.collect, Pool])
def test_what_has_nothing_after_a_yield_has_no_tail(function: Callable[..., Any]) -> None:
    assert tail_of(function) is None


def test_a_decision_declines_if_it_returns_nothing_but_false() -> None:
    def never() -> bool:
        """Costs more than the tests."""
        return False

    def sometimes(big: bool) -> bool | None:
        if big:
            return None
        return False

    assert declines(never)
    assert not declines(sometimes)
    assert not declines(restore)


def test_a_function_without_source_has_no_tail() -> None:
    names: dict[str, Any] = {}
    exec("def made():\n    yield\n    print()", names)
    assert tail_of(names["made"]) is None
