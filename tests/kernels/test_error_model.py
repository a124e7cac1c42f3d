"""``calibrate`` and ``ErrorModel``: what is measured, what is refused, and the file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testkit.errors import KernelsError
from testkit.kernels import ErrorModel, KernelFailed, ToleranceRefused, assert_matches, calibrate
from testkit.kernels._error_model import FIGURES

SHAPES = [(16, 32), (40, 64)]
SEEDS = range(6)
Shape = tuple[int, int]


def make_inputs(shape: Shape, seed: int) -> tuple[torch.Tensor]:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),)


def kernel(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * 3).bfloat16()


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def measured(**options: Any) -> ErrorModel:
    return calibrate(kernel, make_inputs, reference, SEEDS, SHAPES, **options)


@pytest.fixture(scope="module")
def model() -> ErrorModel:
    return measured()


# ---------------------------------------------------------------- what is measured


def test_the_errors_of_rounding_are_what_theory_says(model: ErrorModel) -> None:
    """Rounding to p bits: at most 2**-(p+1) relative, and about 0.21 * 2**-p in the mean square of a normal value."""
    assert model.dtype == "bfloat16"
    assert model.runs == 12
    assert 2.0**-8 * 0.9 < model.healthy["largest element"]["1.0"] <= 2.0**-8
    assert model.healthy["middle row"]["0.5"] == pytest.approx(0.21 * 2.0**-7, rel=0.1)
    for name in FIGURES:
        quantiles = model.healthy[name]
        assert 0 < quantiles["0.5"] <= quantiles["0.9"] <= quantiles["1.0"]


def test_limits_are_the_ratio_and_half_of_its_excess_for_the_middle_of_the_rows(model: ErrorModel) -> None:
    for name, times in {"largest element": 2, "worst row": 2, "row at 90 %": 1.5, "middle row": 1.5}.items():
        most = model.healthy[name]["1.0"]
        assert model.limits[name] == pytest.approx(max(times * most, 2.0**-9))
    assert measured(ratio=3.0).limits["worst row"] == pytest.approx(3 * model.healthy["worst row"]["1.0"])


def test_a_model_judges_shapes_and_scales_that_it_has_not_seen(model: ErrorModel) -> None:
    for shape, scale in [((7, 100), 1.0), ((3, 5, 64), 1e-20), ((1000,), 1e20), ((64, 3), 1.0)]:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64) * scale
        assert_matches(kernel(x), reference(x), model=model)
        with pytest.raises(KernelFailed, match="worst row"):
            assert_matches(kernel(x * 1.03), reference(x), model=model)


def test_one_wrong_element_and_one_wrong_row_are_seen(model: ErrorModel) -> None:
    (x,) = make_inputs((40, 64), 99)
    output = kernel(x)
    output[3, 5] *= 1.02
    with pytest.raises(KernelFailed, match=r"largest element 0\.01\d*, 3\.\d+ times the healthy one; 0 of 40 rows"):
        assert_matches(output, reference(x), model=model)
    output = kernel(x)
    output[3] = output[4]
    with pytest.raises(KernelFailed, match=r"; 1 of 40 rows \(2\.5 %\) beyond the limit \(model of kernel\)") as failed:
        assert_matches(output, reference(x), model=model)
    text = str(failed.value)
    assert re.search(r"\n  relative error +measured  healthy: half  most +limit\n  largest element +.* +beyond\n", text)
    assert re.search(r"\n  middle row +\S+ +\S+ +\S+ +\S+\n  healthy: 12 runs on system ", text)
    assert re.search(r"\n  worst rows by RMS .*\n  \[3\] ", text)


def test_a_zero_row_of_the_reference_must_be_zero(model: ErrorModel) -> None:
    (x,) = make_inputs((40, 64), 99)
    x[7] = 0
    assert_matches(kernel(x), reference(x), model=model)
    output = kernel(x)
    output[7, 0] = 0.1
    with pytest.raises(KernelFailed, match="largest element"):
        assert_matches(output, reference(x), model=model)
    nothing = torch.zeros(16, 32)
    assert_matches(nothing.bfloat16(), nothing.double(), model=model)
    with pytest.raises(KernelFailed, match="largest element inf"):
        assert_matches(torch.full((16, 32), 1e-30).bfloat16(), nothing.double(), model=model)


def test_errors_too_small_to_be_squared_are_errors() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 3.0000000001

    found = calibrate(scaled, make_inputs, reference, SEEDS, SHAPES)
    small = torch.full((16, 32), 1e-200, dtype=torch.float64)
    with pytest.raises(KernelFailed, match="largest element inf"):
        assert_matches(small * 2, small, model=found)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_lets_no_nan_and_no_infinity_pass(model: ErrorModel, bad: float) -> None:
    (x,) = make_inputs((40, 64), 99)
    output = kernel(x)
    output[3, 5] = bad
    with pytest.raises(KernelFailed, match=rf"1 of 2,560 elements is not finite, first at \[3, 5\]: actual {bad}"):
        assert_matches(output, reference(x), model=model)
    x[3, 5] = bad
    with pytest.raises(KernelFailed, match="not finite"):
        assert_matches(kernel(x), reference(x), model=model)
    assert_matches(kernel(x), reference(x), model=model, nan=True, inf=True)


def test_a_kernel_that_was_exact_has_to_stay_exact() -> None:
    exact = calibrate(lambda x: x.float(), make_inputs, lambda x: x.float().double(), SEEDS, SHAPES)
    assert exact.exact
    assert set(exact.limits.values()) == {0.0}
    (x,) = make_inputs((16, 32), 50)
    assert_matches(x.float(), x.float().double(), model=exact)
    with pytest.raises(KernelFailed, match="a healthy one is 0"):
        assert_matches(torch.nextafter(x.float(), torch.tensor(9.0)), x.float().double(), model=exact)


def test_whole_numbers_are_calibrated_as_exact() -> None:
    def ranks(x: torch.Tensor) -> torch.Tensor:
        return x.argsort(-1).to(torch.int32)

    exact = calibrate(ranks, make_inputs, ranks, SEEDS, SHAPES)
    assert exact.exact
    assert exact.dtype == "int32"


def test_numpy_kernels_are_calibrated_and_their_warnings_stay_theirs() -> None:
    def made(shape: Shape, seed: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).standard_normal(shape)

    found = calibrate(lambda x: (x * 3).astype(np.float32), made, lambda x: x * 3, SEEDS, SHAPES)
    assert found.dtype == "float32"
    assert "numpy" in found.machine
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        calibrate(
            lambda x: (x * 3 + 0 * np.log(np.zeros(1)).clip(0)).astype("f4"), made, lambda x: x * 3, SEEDS, SHAPES
        )


def test_inputs_may_be_a_dictionary_and_each_function_gets_its_own() -> None:
    def named(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
        return {"x": make_inputs(shape, seed)[0]}

    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(3).bfloat16()

    assert calibrate(in_place, named, reference, SEEDS, SHAPES).kernel == "in_place"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_kernel_on_a_gpu_is_calibrated_against_a_reference_on_the_cpu() -> None:
    found = calibrate(lambda x: kernel(x.cuda()), make_inputs, reference, SEEDS, SHAPES)
    assert found.machine["device"] == torch.cuda.get_device_name()
    assert found.healthy["largest element"]["1.0"] <= 2.0**-8
    (x,) = make_inputs((16, 32), 70)
    assert_matches(kernel(x.cuda()), reference(x), model=found)


# ---------------------------------------------------------------- mutants


def test_every_mutant_of_an_output_is_tried_and_listed(model: ErrorModel) -> None:
    wanted = ["zeros", "shuffled rows", "off by one row", "off by one column", "dropped last rows"]
    wanted += ["dropped last columns", "dropped diagonal", "half the reduction"]
    assert list(model.mutants) == wanted
    assert all(one["runs"] == 12 and one["least"] > 1 for one in model.mutants.values())


def test_a_mutant_that_passes_in_one_run_is_refused_and_none_leaves_one_out() -> None:
    def slightly_off(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 3.003 if x.shape == (16, 32) else x.float() * 4).bfloat16()

    with pytest.raises(ToleranceRefused, match=r"let mutants pass: off in 6 of 12 runs \(calibrate\)") as refused:
        measured(mutants={"off": slightly_off})
    assert re.search(r"\n  off +12 +6  0\.\d+ +shape \(16, 32\), seed 0\n", str(refused.value))
    assert re.search(r"\n  zeros +12 +12  \d+\.\d+\n", str(refused.value))
    assert "off" not in measured(mutants={"off": None}).mutants
    assert "zeros" not in measured(mutants={"zeros": None}).mutants


def test_inputs_in_which_a_mutant_drowns_in_the_error_are_refused() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (3 * x * (1 + 0.2 * (1e4 * x).sin())).bfloat16()

    def smooth(shape: Shape, seed: int) -> tuple[torch.Tensor]:
        turn = 2 * torch.pi * torch.arange(shape[1], dtype=torch.float64) / shape[1]
        return ((1 + 0.1 * turn.sin()) * torch.arange(1, 1 + shape[0], dtype=torch.float64)[:, None] * (1 + seed),)

    with pytest.raises(ToleranceRefused, match="off by one column in 12 of 12 runs"):
        calibrate(noisy, smooth, reference, SEEDS, SHAPES)
    model = calibrate(noisy, smooth, reference, SEEDS, SHAPES, mutants={"off by one column": None})
    (x,) = smooth((16, 32), 0)
    assert_matches(noisy(x), reference(x), model=model)  # what was left out stays left out
    with pytest.raises(ToleranceRefused, match="2 times the errors of a healthy noisy would let a wrong output pass"):
        assert_matches(noisy(x), reference(x), model=model, mutants=["off by one column"])


def test_a_mutant_of_another_shape_or_without_a_value_is_caught() -> None:
    mutants: dict[str, Callable[..., Any]] = {
        "shorter": lambda x: kernel(x)[:-1],
        "nan": lambda x: kernel(x) * float("nan"),
        "wider": lambda x: kernel(x).double(),
    }
    found = measured(mutants=mutants).mutants
    assert found["shorter"]["least"] == found["nan"]["least"] == found["wider"]["least"] == 1e9


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"reference": lambda x: (x * 3).float()},
            r"the reference returned float32, not float64 \(shape \(16, 32\), seed 0\)",
        ),
        ({"kernel": lambda x: kernel(x).T}, r"actual has the shape \(32, 16\), the reference \(16, 32\)"),
        ({"kernel": lambda x: kernel(x) / 0}, r"the healthy kernel: 512 of 512 elements are not finite"),
        ({"kernel": lambda x: None}, "what the kernel returned is NoneType"),
        ({"make_inputs": lambda shape, seed: (torch.randn(shape).double(),)}, "something else when it is called again"),
        ({"seeds": range(4)}, "4 seeds times 2 shapes are too few runs"),
        ({"seeds": [0] * 10}, "seeds repeat"),
        (
            {"make_inputs": lambda shape, seed: make_inputs(shape, 0), "shapes": SHAPES},
            "the reference gives the same for every seed",
        ),
        (
            {"kernel": lambda x: torch.zeros_like(x), "reference": torch.zeros_like},
            "no mutant ever changes the output of <lambda>",
        ),
        ({"shapes": []}, "6 seeds times 0 shapes are too few runs"),
        ({"ratio": 1.0}, "ratio is 1.0"),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"mutants": {"same": kernel}}, "mutant 'same' never changes the output"),
    ],
)
def test_what_proves_nothing_is_refused(options: dict[str, Any], match: str) -> None:
    named = {"kernel": kernel, "make_inputs": make_inputs, "reference": reference, "seeds": SEEDS, "shapes": SHAPES}
    with pytest.raises(KernelsError, match=match):
        calibrate(**{**named, **options})


def test_a_kernel_that_writes_the_buffer_of_the_reference_is_not_compared_with_itself() -> None:
    buffer = torch.empty(16, 32, dtype=torch.float64)

    def scaled(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.mul(x, by, out=buffer)

    found = calibrate(scaled(3.0001), make_inputs, scaled(3.0), range(10), [(16, 32)])
    assert not found.exact


def test_a_model_of_another_dtype_is_refused(model: ErrorModel) -> None:
    (x,) = make_inputs((16, 32), 0)
    with pytest.raises(KernelsError, match="the model is for bfloat16, actual has float32"):
        assert_matches(x.float(), x, model=model)


# ---------------------------------------------------------------- the file


def test_a_stored_model_is_short_reads_back_and_says_where_it_comes_from(model: ErrorModel, tmp_path: Path) -> None:
    file = tmp_path / "scale.json"
    model.save(file)
    text = file.read_text()
    assert text.count("\n") < 45
    assert json.loads(text)["machine"].keys() == {"system", "processor", "device", "python", "torch"}
    assert '  "seeds": [0, 1, 2, 3, 4, 5],\n  "shapes": ["(16, 32)", "(40, 64)"],\n' in text
    back = ErrorModel.load(file)
    assert back.limits == model.limits
    assert back.mutants == model.mutants
    (x,) = make_inputs((16, 32), 70)
    assert_matches(kernel(x), reference(x), model=file)
    with pytest.raises(KernelFailed, match=r"\(model of kernel, scale\.json\)"):
        assert_matches(kernel(x * 2), reference(x), model=str(file))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda held: held.update(format="2"), 'does not say "format": "testkit error model 1"'),
        (lambda held: held.pop("dtype"), "dtype is None"),
        (lambda held: held.update(extra=1), "extra is no entry of an error model"),
        (lambda held: held.update(ratio=0.5), "ratio is 0.5"),
        (lambda held: held["healthy"].pop("worst row"), "healthy, worst row is None"),
        (lambda held: held["healthy"]["worst row"].update({"1.0": float("nan")}), "healthy, worst row is"),
        (lambda held: held["healthy"]["worst row"].update({"1.0": "big"}), "healthy, worst row is"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_entry(
    model: ErrorModel, tmp_path: Path, change: Callable[[dict[str, Any]], object], match: str
) -> None:
    file = tmp_path / "model.json"
    model.save(file)
    held = json.loads(file.read_text())
    change(held)
    file.write_text(json.dumps(held))
    with pytest.raises(KernelsError, match=match):
        ErrorModel.load(file)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text("{")
    with pytest.raises(KernelsError, match=r"is no JSON: .*\nnext: make it again with calibrate"):
        ErrorModel.load(file)
