"""What four ways to compare a kernel with its reference catch, what they blame wrongly, and what they cost.

    python benchmarks/tolerances.py [--seeds 20] [--healthy 1000] [--repeat 7]

The kernels of tests/kernels/_kernels.py with 24 faults, each run on every shape and seed, and without a fault on seeds
that no model has seen; one run of this script prints all columns. Then seconds for 16 M elements of bfloat16.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from testkit._text import table
from testkit.kernels import ErrorModel, assert_matches, calibrate

KERNELS = Path(__file__).resolve().parent.parent / "tests" / "kernels" / "_kernels.py"
CALIBRATED = range(12)
FAULTY, HEALTHY = 1_000, 10_000
"""The first seed of the runs with a fault, and of those without."""
Tensor = torch.Tensor


def kernels() -> Any:
    spec = importlib.util.spec_from_file_location("_kernels", KERNELS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_kernels"] = module
    spec.loader.exec_module(module)
    return module


def default(output: Tensor, reference: Tensor, baseline: Tensor, model: ErrorModel) -> None:
    """torch.testing.assert_close with the tolerances of the dtype; it wants both sides in that dtype."""
    torch.testing.assert_close(output, reference.to(output.dtype))


def published(output: Tensor, reference: Tensor, baseline: Tensor, model: ErrorModel) -> None:
    """What a suite that must be green chooses: the tolerances of vllm-project/vllm pull request 51457."""
    torch.testing.assert_close(output.double(), reference.double(), rtol=0.1, atol=0.05)


def ratio(output: Tensor, reference: Tensor, baseline: Tensor, model: ErrorModel) -> None:
    """At most twice the largest error of the same in plain torch, in the same precision and on the same inputs."""
    error, healthy = (float((one.double() - reference.double()).abs().max()) for one in (output, baseline))
    assert error <= 2 * healthy


def cosine(output: Tensor, reference: Tensor, baseline: Tensor, model: ErrorModel) -> None:
    flat = (output.double().reshape(-1), reference.double().reshape(-1))
    assert float(torch.cosine_similarity(*flat, dim=0)) >= 0.999


def ours(output: Tensor, reference: Tensor, baseline: Tensor, model: ErrorModel) -> None:
    assert_matches(output, reference, model=model)


CHECKS: dict[str, Callable[[Tensor, Tensor, Tensor, ErrorModel], None]] = {
    "assert_close": default,
    "0.1 and 0.05": published,
    "max error 2x": ratio,
    "cosine 0.999": cosine,
    "ours": ours,
}


def fails(check: Callable[..., None], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except AssertionError:
        return True
    return False


def compared(subject: Any, model: ErrorModel, seeds: range) -> tuple[dict[str, list[int]], list[int], int]:
    """For each fault the runs in which each check failed; the same without a fault; and the number of runs."""
    caught = {fault: [0] * len(CHECKS) for fault in ("", *subject.faults)}
    for shape in subject.shapes:
        for seed in seeds:
            inputs = subject.make_inputs(shape, seed)
            reference, baseline = subject.reference(*inputs), subject.baseline(*inputs)
            for fault, counts in caught.items():
                if bool(fault) == (seed >= HEALTHY):
                    continue
                output = subject.kernel(*inputs, fault=fault)
                for at, check in enumerate(CHECKS.values()):
                    counts[at] += fails(check, output, reference, baseline, model)
    return caught, caught.pop(""), len(subject.shapes) * len(seeds)


def detection(seeds: int, healthy: int) -> None:
    lines: list[tuple[object, ...]] = []
    blamed: list[tuple[object, ...]] = []
    sums = [0] * len(CHECKS)
    for subject in kernels().SUBJECTS:
        model = calibrate(
            subject.kernel,
            subject.make_inputs,
            subject.reference,
            CALIBRATED,
            subject.shapes,
            mutants=subject.mutants(),
        )
        caught, _, runs = compared(subject, model, range(FAULTY, FAULTY + seeds))
        lines += [(subject.name, fault, runs, *counts) for fault, counts in caught.items()]
        for counts in caught.values():
            sums = [total + (count == runs) for total, count in zip(sums, counts, strict=True)]
        per_shape = -(-healthy // len(subject.shapes))
        _, wrong, runs = compared(subject, model, range(HEALTHY, HEALTHY + per_shape))
        blamed.append((subject.name, "healthy", runs, *wrong))
    print("runs with a fault in which a check failed (it should in all)")
    print("\n".join(table([("kernel", "fault", "runs", *CHECKS), *lines])))
    print("\n".join(table([(f"faults of {len(lines)} caught in all runs", *CHECKS), ("", *sums)])))
    print("runs of a healthy kernel in which a check failed (it should in none)")
    print("\n".join(table([("kernel", "", "runs", *CHECKS), *blamed])))


def cost(repeat: int) -> None:
    """Both sides differ by one step here and there, so that all pass; interleaved, medians."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(4096, 4096, generator=generator).bfloat16()
    actual = reference.clone()
    actual[::3, ::5] *= 1.0078125
    model = calibrate(
        lambda x: x.bfloat16() * 1.0078125,
        lambda shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double(),
        lambda x: x,
        range(10),
        [(64, 128)],
    )
    ways: dict[str, Callable[[], None]] = {
        "assert_close": lambda: torch.testing.assert_close(actual, reference),
        "assert_matches": lambda: assert_matches(actual, reference),
        "assert_matches, rtol and atol, mutants tried": lambda: assert_matches(actual, reference, rtol=0.02, atol=0.02),
        "assert_matches, a model, mutants tried": lambda: assert_matches(actual, reference, model=model),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat + 1):  # the first is a warm-up
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began)
    first = statistics.median(times["assert_close"][1:])
    print(f"seconds for {actual.numel():,} elements of bfloat16, {torch.get_num_threads()} threads, median of {repeat}")
    for name, found in times.items():
        median = statistics.median(found[1:])
        print(f"  {name:<45} {median:.3f}  {median / first:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors of a few thousand elements: threads only wait for each other
    detection(options.seeds, options.healthy)
    torch.set_num_threads(threads)
    cost(options.repeat)


if __name__ == "__main__":
    main()
