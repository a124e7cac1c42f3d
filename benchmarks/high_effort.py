"""High effort: rows and CPU seconds beside those of default effort, and the seconds of a second process with a store.

    python benchmarks/high_effort.py
    python benchmarks/high_effort.py --models spinv gcc --seed 1

Each cell is one call of ``sample`` in a new process, verification included. "wanted" and "aim" are the rows that were
promised and hoped for. All rows are judged by the checker of the tests, which shares no code with the engine: "3!"
means that 3 owed tuples are missing or rows disallowed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "pairwise"))

from covering_arrays import faults, machine
from covering_models import HIGH, known_models  # found through the path set above

from testkit.pairwise import sample


def once(model: str, effort: str, seed: int, store: str | None) -> dict[str, Any]:
    """One call in this process: its rows as levels, and its CPU seconds."""
    known = known_models()[model]
    begin = time.process_time()
    chosen = sample(known.axes, effort=effort, seed=seed, store=store, **known.options)  # type: ignore[arg-type]
    seconds = time.process_time() - begin
    rows = [[values.index(row[name]) for name, values in known.axes.items()] for row in chosen.rows]
    return {"rows": rows, "seconds": seconds}


def asked(model: str, effort: str, seed: int, store: str | None) -> tuple[str, str]:
    """The same in a new process, as two cells: rows and seconds."""
    command = [sys.executable, __file__, "--once", json.dumps([model, effort, seed, store])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    wrong = faults(known_models()[model], answer["rows"])
    return f"{len(answer['rows'])}{f' {wrong}!' if wrong else ''}", f"{answer['seconds']:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(HIGH), metavar="NAME", default=list(HIGH))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    wish = parser.parse_args()
    if wish.once:
        print(json.dumps(once(*json.loads(wish.once))))
        return
    print(machine())
    print(f"{'model':<16}{'default':>8}{'':>9}{'high':>8}{'':>9}{'wanted':>8}{'aim':>6}{'from the store':>17}")
    with tempfile.TemporaryDirectory() as store:
        for model in wish.models:
            wanted, aim = HIGH[model]
            default = asked(model, "default", wish.seed, None)
            high = asked(model, "high", wish.seed, store)
            again = asked(model, "high", wish.seed, store)
            if again[0] != high[0]:
                raise SystemExit(f"{model}: {high[0]} rows, then {again[0]} from the store")
            print(
                f"{model:<16}{default[0]:>8}{default[1]:>9}{high[0]:>8}{high[1]:>9}{wanted:>8}{aim:>6}{again[1]:>17}",
                flush=True,
            )


if __name__ == "__main__":
    main()
