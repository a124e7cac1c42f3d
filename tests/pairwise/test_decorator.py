"""``parametrize``: the marks that it puts on a function; what pytest makes of them is the plugin's business."""

from __future__ import annotations

from typing import Any

import pytest

from testkit.errors import KitWarning, PairwiseError
from testkit.pairwise import parametrize


def marks_of(axes: Any, **options: Any) -> list[pytest.Mark]:
    @parametrize(axes, **options)
    def target() -> None:
        pass

    return list(target.pytestmark)  # type: ignore[attr-defined]


def params_of(mark: pytest.Mark) -> list[tuple[tuple[Any, ...], str]]:
    return [(param.values, param.id) for param in mark.args[1]]


def test_each_axis_is_a_parametrize_mark_and_the_last_mark_is_ours() -> None:
    *axes, ours = marks_of({"n, k": [(1, 2), (3, 4)], "flag": [True]}, strength=1, full="n", seed=3)
    assert [mark.name for mark in axes] == ["parametrize", "parametrize"]
    assert [mark.args[0] for mark in axes] == ["n,k", "flag"]
    assert params_of(axes[0]) == [((1, 2), "n=1-k=2"), ((3, 4), "n=3-k=4")]
    assert params_of(axes[1]) == [((True,), "flag=True")]
    assert (ours.name, ours.kwargs["strength"], ours.kwargs["full"], ours.kwargs["seed"]) == ("pairwise", 1, "n", 3)


def test_values_are_handed_on_as_the_very_objects() -> None:
    values: list[Any] = [[1], {"a": 1}, float("nan"), (1, 2)]
    mark = marks_of({"a": values, "b": [1]})[0]
    assert all(param.values[0] is value for param, value in zip(mark.args[1], values, strict=True))


def test_params_keep_their_ids_and_marks() -> None:
    slow = pytest.param(1, marks=pytest.mark.skip(reason="slow"), id="one")
    pair = pytest.param(1, 2, id="small")
    first, second, _ = marks_of({"a": [slow, 2], "b,c": [pair, (3, 4)]})
    assert params_of(first) == [((1,), "a=one"), ((2,), "a=2")]
    assert [mark.name for mark in first.args[1][0].marks] == ["skip"]
    assert params_of(second) == [((1, 2), "small"), ((3, 4), "b=3-c=4")]


def test_a_set_is_put_into_its_order_and_the_keys_of_a_mapping_keep_theirs() -> None:
    first, second, _ = marks_of({"a": {"tall", "ragged", "wide"}, "b": {"z": 1, "y": 2}.keys()})
    assert [text for _, text in params_of(first)] == ["a=ragged", "a=tall", "a=wide"]
    assert [text for _, text in params_of(second)] == ["b=z", "b=y"]


def test_ids_that_are_numbered_are_said() -> None:
    class Plain:
        pass

    with pytest.warns(KitWarning, match=r"^pairwise: axis 'a': <.*Plain.*> has the id of another value"):
        marks_of({"a": [Plain(), Plain()], "b": [1]})


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([("a", [1])], "axes is list, not a mapping"),
        ({"a": []}, "axis 'a' has no values"),
        ({"a": 5}, "axis 'a' has 5, not values"),
        ({"a,b": [pytest.param(1)]}, "axis 'a,b' needs 2 entries a value, position 0 holds 1"),
        ({}, "a model needs at least one axis"),
    ],
)
def test_axes_that_cannot_be_used_are_refused_where_they_stand(axes: Any, message: str) -> None:
    with pytest.raises(PairwiseError, match=f"^pairwise: {message}"):
        parametrize(axes)
