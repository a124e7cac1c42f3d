"""Five kernels, 24 faults: each is caught on every seed and shape, and a healthy kernel never fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import pytest
import torch
from _kernels import SUBJECTS, Subject

from testkit.errors import KernelsError
from testkit.kernels import ErrorModel, KernelFailed, ToleranceRefused, assert_matches, calibrate

Kernel = Callable[..., torch.Tensor]

each_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
CALIBRATED = range(12)
FRESH = range(1_000, 1_020)
"""Seeds that no model has seen."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors of a few thousand elements: threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models() -> dict[str, ErrorModel]:
    return {subject.name: calibrated(subject) for subject in SUBJECTS}


def calibrated(
    subject: Subject, *, ratio: float = 2.0, extra: Mapping[str, Kernel] = MappingProxyType({})
) -> ErrorModel:
    return calibrate(
        subject.kernel,
        subject.make_inputs,
        subject.reference,
        CALIBRATED,
        subject.shapes,
        mutants=subject.mutants() | dict(extra),
        ratio=ratio,
    )


def missed(subject: Subject, model: ErrorModel, seeds: range) -> list[tuple[str, tuple[int, ...], int]]:
    """Faults that passed, with shape and seed."""
    found = []
    for shape in subject.shapes:
        for seed in seeds:
            reference = subject.reference(*subject.make_inputs(shape, seed))
            for fault, mutant in subject.mutants().items():
                output = mutant(*subject.make_inputs(shape, seed))
                try:
                    assert_matches(output, reference, model=model)
                except KernelFailed:
                    continue
                found.append((fault, shape, seed))
    return found


def run_healthy(subject: Subject, model: ErrorModel, seeds: range) -> int:
    """How many runs passed; the first that does not fails here."""
    for shape in subject.shapes:
        for seed in seeds:
            inputs = subject.make_inputs(shape, seed)
            assert_matches(subject.kernel(*inputs), subject.reference(*inputs), model=model)
    return len(subject.shapes) * len(seeds)


def test_there_are_24_faults() -> None:
    assert sum(len(subject.faults) for subject in SUBJECTS) == 24
    assert len({subject.kernel for subject in SUBJECTS}) == 4  # attention comes with fp8 and with bf16 operands


@each_subject
def test_every_fault_is_caught_on_every_shape_and_each_of_20_seeds(
    subject: Subject, models: dict[str, ErrorModel]
) -> None:
    assert missed(subject, models[subject.name], FRESH) == []


@each_subject
def test_a_healthy_kernel_passes_on_seeds_that_no_model_has_seen(
    subject: Subject, models: dict[str, ErrorModel]
) -> None:
    assert run_healthy(subject, models[subject.name], range(5_000, 5_050)) == 200


def test_limits_that_a_fault_would_pass_are_refused_with_the_table_of_mutants() -> None:
    subject = SUBJECTS[0]
    with pytest.raises(ToleranceRefused, match="let mutants pass") as refused:
        calibrated(subject, ratio=4.0)
    text = str(refused.value)
    assert text.startswith("kernels: limits of 4 times the errors of attention let mutants pass: dropped diagonal in ")
    assert re.search(r"\n  mutant +runs  caught  least of its limit  passes\n", text)
    assert re.search(r"\n  zeros +48 +48  1\d\.\d+\n", text)
    assert re.search(r"\n  dropped diagonal +48 +\d+  0\.\d+ +shape \(\d, \d+, \d+\), seed \d+\n", text)


def test_a_fault_that_changes_nothing_is_no_proof() -> None:
    subject = SUBJECTS[3]
    with pytest.raises(KernelsError, match="mutant 'harmless' never changes the output"):
        calibrated(subject, extra={"harmless": subject.kernel})


@pytest.mark.long
@each_subject
def test_a_healthy_kernel_passes_1000_runs(subject: Subject, models: dict[str, ErrorModel]) -> None:
    assert run_healthy(subject, models[subject.name], range(10_000, 10_250)) == 1_000
