"""Does the simulated device know when the host waits? Recall and precision against what an H200 did.

    python benchmarks/sync_truth.py                     # on any machine: the simulated device against the records
    python benchmarks/sync_truth.py --measure FILE      # on a machine with CUDA: make such a record of the same probes

A probe is right when the simulated device says "the host waits" just where torch's sync-debug mode warned on the GPU,
or a profiler saw a blocking runtime call. Every disagreement is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from testkit.syncs import census, simulated

DATA = Path(__file__).parents[1] / "tests" / "data" / "syncs"
RECORDS = ("sync_truth_h200.json", "sync_probes_h200.json")
BLOCKING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync", "cudaMemcpy")
STAGED = {"pageable", "gapped"}  # the driver stages them; torch and the profiler see no wait
MARK = "called a synchronizing"


def runner(source: str, names: dict[str, Any]) -> Callable[[], None]:
    """The probe as a function: its source runs, and if that only defines a function, the function too."""
    code = compile(source, "<probe>", "exec")

    def run() -> None:
        own = dict(names)
        exec(code, own)
        for name in [name for name in own if name not in names]:
            body = getattr(own[name], "__code__", None)
            if body is not None and body.co_filename == "<probe>":
                own[name]()

    return run


def simulate(record: dict[str, Any]) -> tuple[Counter[str], list[str]]:
    """How often each answer was given, and a line for each that was wrong."""
    names: dict[str, Any] = {"torch": torch}
    answers: Counter[str] = Counter()
    lines = []
    with simulated():
        exec(record["setup"], names)
        for probe in record["probes"]:
            truth = probe["warned"] or any("Synchronize" in call for call in probe["calls"])
            try:
                with census() as seen:
                    runner(probe["source"], names)()
            except Exception as error:  # noqa: BLE001  # whatever the probe raises is an answer
                answers["no answer"] += 1
                lines.append(f"  no answer  {probe['name']}: {type(error).__name__}: {error}".splitlines()[0])
                continue
            said = any(site.kind not in STAGED for site in seen.sites)
            answers[{(1, 1): "hit", (0, 0): "rest", (1, 0): "missed", (0, 1): "extra"}[truth, said]] += 1
            if truth != said:
                lines.append(f"  {'missed' if truth else 'extra '}     {probe['name']}")
    return answers, lines


def measure(path: Path) -> None:
    """Run the probes of both records on this machine's GPU, and write what they did."""
    found = []
    for name in RECORDS:
        record = json.loads((DATA / name).read_text(encoding="utf-8"))
        names: dict[str, Any] = {"torch": torch}
        exec(record["setup"], names)
        for probe in record["probes"]:
            run = runner(probe["source"], names)
            try:
                run()
                found.append({**probe, "warned": warned(run), "calls": calls(run)})
            except Exception as error:  # noqa: BLE001  # the same
                found.append({**probe, "error": f"{type(error).__name__}: {error}"})
    machine = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    path.write_text(json.dumps({**machine, "probes": found}, indent=1) + "\n", encoding="utf-8")


def warned(run: Callable[[], None]) -> bool:
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return any(MARK in str(one.message) for one in seen)


def calls(run: Callable[[], None]) -> dict[str, int]:
    """Blocking runtime calls; the profiler's own device-wide one at its end is taken off."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
    seen = Counter(event.name() for event in profile.profiler.kineto_results.events() if event.name() in BLOCKING)
    seen["cudaDeviceSynchronize"] -= 1
    return dict(+seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE")
    path = parser.parse_args().measure
    warnings.simplefilter("ignore")
    if path is not None:
        measure(path)
        return 0
    for name in RECORDS:
        record = json.loads((DATA / name).read_text(encoding="utf-8"))
        answers, lines = simulate(record)
        hits, said, true = answers["hit"], answers["hit"] + answers["extra"], answers["hit"] + answers["missed"]
        print(f"{name}: {len(record['probes'])} operations on {record['machine']}, torch {record['torch']}")
        figures = f"recall {hits / true:.1%} of {true}, precision {hits / said:.1%}"
        print(f"  simulated with torch {torch.__version__}: {figures}")
        print("\n".join(lines) or "  no disagreement")
    return 0


if __name__ == "__main__":
    sys.exit(main())
