"""Where the loop waits, on a GPU or, where there is none, on the simulated device.

python census.py [--runner before|after] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from step_loop import after, before

from testkit.syncs import census, simulated

HERE = Path(__file__).resolve().parent
VARIABLE = "STEP_LOOP_RUNNER"
RUNNERS = {"before": before.Runner, "after": after.Runner}
PROMPTS = [[3, 1, 4, 1, 6], [9], [2, 7, 1, 8, 2, 8, 1]]
SHORTEST = [1, 4, 2]


def chosen() -> Any:
    """The loop that the tests judge: the fixed one, or that of the environment variable STEP_LOOP_RUNNER."""
    name = os.environ.get(VARIABLE) or "after"
    if name not in RUNNERS:
        raise ValueError(f"{name} is no loop; these are: {', '.join(RUNNERS)}")
    return RUNNERS[name]


def device_for(kind: str) -> AbstractContextManager[Any]:
    """The device of a test: ``kind`` is "gpu" or "simulated"."""
    return nullcontext(torch.device("cuda", 0)) if kind == "gpu" else simulated()


def taken(runner: str, device: torch.device) -> Any:
    """The census of one run; set-up is not in it."""
    running = RUNNERS[runner](PROMPTS, SHORTEST, device)
    with census() as seen:
        running.run()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", choices=RUNNERS, default="before")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the census there, with what it was taken on")
    given = parser.parse_args()
    kind = "gpu" if torch.cuda.is_available() else "simulated"
    machine = torch.cuda.get_device_name(0) if kind == "gpu" else kind
    with device_for(kind) as device:
        seen = taken(given.runner, device)
    sys.stdout.write(f"on: {machine}, torch {torch.__version__}\n{seen.text(HERE)}\n")
    if given.json:
        found = {"machine": machine, "torch": torch.__version__, **json.loads(seen.to_json(HERE))}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
