"""Covering arrays: rows and seconds, ours beside every peer that is installed, from one run.

    python benchmarks/covering_arrays.py --repeat 7
    python benchmarks/covering_arrays.py --models krc spins --peers allpairspy

Peers: allpairspy, covertable and coverwise where they can be imported; PICT and JENNY where the environment variables
of these names hold the paths of the programs. Each run of a peer is followed by one of ours, so that a machine that
gets slower slows both; medians are printed. Ours are the seconds of ``sample`` with its verification; a peer's are the
seconds of its call (of a program: with its start). All rows are judged by the checker of the tests, which shares no
code with the engine: "3!" after a number of rows means that 3 owed tuples are missing or rows disallowed. A
peer that needs longer than --limit for a model is ended there, and is not asked again about that model.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "pairwise"))

from brute import Product, groups_missing  # found through the path set above
from covering_models import Known, known_models, skinny_gemm

from testkit.pairwise import sample

Rows = list[list[int]]
PYTHON_PEERS = ("allpairspy", "covertable", "coverwise")
PROGRAMS = ("PICT", "JENNY")
WALK = 20_000  # the whole product is walked for models up to this size


# ------------------------------------------------------------------ peers: a model in, rows of levels out


def names_in(predicate: Callable[..., Any]) -> tuple[str, ...]:
    return predicate.__code__.co_varnames[: predicate.__code__.co_argcount]


def predicates(known: Known) -> list[Callable[..., Any]]:
    where = known.options.get("where", [])
    return [where] if callable(where) else list(where)


def allpairspy(known: Known) -> Rows:
    """Lists with a filter over row prefixes, as its documentation shows."""
    from allpairspy import AllPairs

    if "full" in known.options:
        raise NotImplementedError
    values = list(known.axes.values())
    places = {name: place for place, name in enumerate(known.axes)}
    asked = [(predicate, [places[name] for name in names_in(predicate)]) for predicate in predicates(known)]

    def fits(prefix: list[Any]) -> bool:
        return all(p(*[prefix[i] for i in scope]) for p, scope in asked if max(scope) < len(prefix))

    chosen = [list(row) for row in AllPairs(values, filter_func=fits, n=known.strength)]
    return [[axis.index(value) for axis, value in zip(values, row, strict=True)] for row in chosen]


def covertable(known: Known) -> Rows:
    """Levels as values; predicates as ``fn`` conditions with ``requires``; crossed axes as a sub-model."""
    from covertable import make

    names = [f"a{place}" for place in range(len(known.axes))]
    values = list(known.axes.values())
    factors = {name: list(range(len(axis))) for name, axis in zip(names, values, strict=True)}
    places = {name: place for place, name in enumerate(known.axes)}
    options: dict[str, Any] = {}
    if predicates(known):
        options["constraints"] = [
            {
                "operator": "fn",
                "requires": [f"a{places[n]}" for n in names_in(p)],
                "evaluate": _on_levels(p, places, values),
            }
            for p in predicates(known)
        ]
    if "full" in known.options:
        crossed = [f"a{places[name]}" for name in known.options["full"]]
        options["sub_models"] = [{"fields": crossed, "strength": len(crossed)}]
    rows = make(factors, strength=known.strength, **options)
    return [[int(row[name]) for name in names] for row in rows]


def _on_levels(
    predicate: Callable[..., Any], places: dict[str, int], values: list[list[Any]]
) -> Callable[[dict[str, int]], bool]:
    scope = [places[name] for name in names_in(predicate)]
    return lambda row: bool(predicate(*[values[place][row[f"a{place}"]] for place in scope]))


def coverwise(known: Known) -> Rows:
    """Levels as texts; what predicates forbid written out in its language."""
    import coverwise as peer

    names = [f"a{place}" for place in range(len(known.axes))]
    options: dict[str, Any] = {}
    if predicates(known):
        options["constraints"] = [
            "NOT (" + " AND ".join(f"a{place} = v{level}" for place, level in cells) + ")" for cells in forbidden(known)
        ]
    if "full" in known.options:
        crossed = [f"a{list(known.axes).index(name)}" for name in known.options["full"]]
        options["subModels"] = [{"parameters": crossed, "strength": len(crossed)}]
    parameters = [
        {"name": n, "values": [f"v{level}" for level in range(k)]} for n, k in zip(names, known.levels, strict=True)
    ]
    result = peer.generate(parameters=parameters, strength=known.strength, **options)
    tests = result["tests"] if isinstance(result, dict) else result.tests
    return [[int(row[name][1:]) for name in names] for row in tests]


def forbidden(known: Known) -> list[list[tuple[int, int]]]:
    """Every combination of a predicate's scope that it refuses, as (axis, level)."""
    places = {name: place for place, name in enumerate(known.axes)}
    values = list(known.axes.values())
    found = []
    for predicate in predicates(known):
        scope = [places[name] for name in names_in(predicate)]
        for levels in itertools.product(*[range(len(values[place])) for place in scope]):
            if not predicate(*[values[place][level] for place, level in zip(scope, levels, strict=True)]):
                found.append(list(zip(scope, levels, strict=True)))
    return found


def pict(known: Known) -> Rows:
    """PICT has sub-models, but multiplies them with the rest: crossed axes are left to the others."""
    if "full" in known.options:
        raise NotImplementedError
    lines = [f"a{place}: " + ", ".join(f"v{level}" for level in range(n)) for place, n in enumerate(known.levels)]
    for cells in forbidden(known):
        lines.append("NOT (" + " AND ".join(f'[a{place}] = "v{level}"' for place, level in cells) + ");")
    with tempfile.NamedTemporaryFile("w", suffix=".pict") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        command = [os.environ["PICT"], file.name, f"/o:{known.strength}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = shown[0].split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in shown[1:]]
    return [[int(row[f"a{place}"][1:]) for place in range(len(known.levels))] for row in rows]


def jenny(known: Known) -> Rows:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if "full" in known.options:
        raise NotImplementedError
    command = [os.environ["JENNY"], f"-n{known.strength}", *map(str, known.levels)]
    command += ["-w" + "".join(f"{place + 1}{letters[level]}" for place, level in cells) for cells in forbidden(known)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [[letters.index(cell[-1]) for cell in line.split()] for line in shown.splitlines() if line.strip()]


PEERS: dict[str, Callable[[Known], Rows]] = {
    "allpairspy": allpairspy,
    "covertable": covertable,
    "coverwise": coverwise,
    "PICT": pict,
    "JENNY": jenny,
}


def installed() -> list[str]:
    return [name for name in PYTHON_PEERS if importlib.util.find_spec(name)] + [n for n in PROGRAMS if n in os.environ]


# ------------------------------------------------------------------ judging


def owed_pairs(known: Known) -> tuple[int, int]:
    """Our count of owed tuples and rows, for models too large to walk."""
    chosen = sample(known.axes, effort=0, **known.options)
    return chosen.owed, len(chosen.rows)


def faults(known: Known, rows: Rows) -> int:
    """Owed tuples missing plus rows disallowed, by the independent checker."""
    values = list(known.axes.values())
    total = 1
    for axis in values:
        total *= len(axis)
    if not predicates(known) and "full" not in known.options:
        return groups_missing(known.levels, rows, known.strength)
    if total <= WALK:
        plain = {f"a{place}": list(range(len(axis))) for place, axis in enumerate(values)}
        places = {name: place for place, name in enumerate(known.axes)}
        where = [_by_name(p, places, values) for p in predicates(known)]
        full = [f"a{places[name]}" for name in known.options.get("full", ())]
        product = Product(plain, strength=known.strength, full=full, where=where)
        verdict = product.judge([{f"a{place}": level for place, level in enumerate(row)} for row in rows])
        return len(verdict.missing) + len(verdict.disallowed)
    # Too large to walk: allowed rows show allowed tuples only, so count them against the owed ones.
    places = {name: place for place, name in enumerate(known.axes)}
    good = [
        row
        for row in rows
        if all(p(*[values[places[n]][row[places[n]]] for n in names_in(p)]) for p in predicates(known))
    ]
    columns = list(zip(*good, strict=True)) or [()] * len(values)
    groups = itertools.combinations(range(len(values)), known.strength)
    held = sum(len(set(zip(*[columns[a] for a in group], strict=True))) for group in groups)
    return owed_pairs(known)[0] - held + len(rows) - len(good)


def _by_name(predicate: Callable[..., Any], places: dict[str, int], values: list[list[Any]]) -> Callable[..., Any]:
    """The predicate over levels, under the names a0, a1, ..."""
    scope = [places[name] for name in names_in(predicate)]
    made: dict[str, Any] = {"predicate": predicate, "values": values}
    asked = ", ".join(f"values[{place}][a{place}]" for place in scope)
    exec(f"def on_levels({', '.join(f'a{place}' for place in scope)}): return predicate({asked})", made)
    on_levels: Callable[..., Any] = made["on_levels"]
    return on_levels


# ------------------------------------------------------------------ measuring


def run_peer(name: str, model: str, answer: Any) -> None:
    """In a child: one call for the imports and the caches, which is dropped unless it is all there is."""
    known = known_models()[model]
    begin = time.perf_counter()
    try:
        rows = PEERS[name](known)
    except NotImplementedError:
        answer.put(("unable", 0.0, []))
        return
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer to this model
        answer.put((f"{type(error).__name__}: {error}"[:200], 0.0, []))
        return
    seconds = time.perf_counter() - begin
    if seconds < 1.0:
        begin = time.perf_counter()
        rows = PEERS[name](known)
        seconds = time.perf_counter() - begin
    answer.put(("", seconds, rows))


def ask_peer(name: str, model: str, limit: float) -> tuple[str, float, Rows]:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    child = context.Process(target=run_peer, args=(name, model, answer))
    child.start()
    try:
        return answer.get(timeout=limit + 5.0)  # type: ignore[no-any-return]  # what run_peer put there
    except Exception:  # noqa: BLE001 - Empty, or a child that died
        return f">{limit:.0f} s", limit, []
    finally:
        child.kill()
        child.join()


def ask_ours(known: Known) -> tuple[float, Rows]:
    """The seconds of one call with fresh lists, and its rows as levels."""
    fresh = {name: list(values) for name, values in known.axes.items()}
    begin = time.perf_counter()
    chosen = sample(fresh, **known.options)
    seconds = time.perf_counter() - begin
    return seconds, [
        [
            values.index(row[name] if "," not in name else type(values[0])(row[part] for part in name.split(",")))
            for name, values in known.axes.items()
        ]
        for row in chosen.rows
    ]


def shown(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def measure(model: str, known: Known, peers: Sequence[str], repeat: int, limit: float) -> list[str]:
    """The cells of one line: ours, then each peer."""
    ask_ours(known)
    ours: list[float] = []
    theirs: dict[str, list[tuple[str, float, Rows]]] = {name: [] for name in peers}
    for turn in range(repeat):
        seconds, rows = ask_ours(known)
        ours.append(seconds)
        for name in peers:
            before = theirs[name]
            if before and (before[-1][0] or before[-1][1] > 2.0):
                continue  # an error, a limit, or slow enough for one run to tell
            before.append(ask_peer(name, model, limit))
            ours.append(ask_ours(known)[0])
        if turn and statistics.median(ours) > 1.0:
            break
    wrong = faults(known, rows)
    cells = [model, f"{len(rows)}{f' {wrong}!' if wrong else ''}", shown(statistics.median(ours))]
    for name in peers:
        said, seconds, rows = theirs[name][-1]
        if said:
            cells += ["-", "-" if said == "unable" else said if said.startswith(">") else "refused"]
            if cells[-1] == "refused":
                print(f"  {name} on {model}: {said}", file=sys.stderr)
            continue
        wrong = faults(known, rows)
        cells += [f"{len(rows)}{f' {wrong}!' if wrong else ''}"]
        cells += [shown(statistics.median([seconds for _, seconds, _ in theirs[name]]))]
    return cells


FIRST_CALL = """
import json, sys, time
functions = json.loads(sys.stdin.read())
begin = time.perf_counter()
if sys.argv[1] == "ours":
    from testkit.pairwise import sample
    for axes in functions: sample(axes)
else:
    from allpairspy import AllPairs
    for axes in functions: list(AllPairs(list(axes.values())))
print(time.perf_counter() - begin)
"""


def four_functions(repeat: int) -> None:
    """Summed over vLLM's four functions, as users call: fresh lists each time, one process; then first calls."""
    from allpairspy import AllPairs

    def once(call: Callable[[dict[str, list[Any]]], Any]) -> list[float]:
        spent = []
        for axes in skinny_gemm().values():
            begin = time.perf_counter()
            call(axes)
            spent.append(time.perf_counter() - begin)
        return spent

    sides: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
        "ours": sample,
        "allpairspy": lambda axes: list(AllPairs(list(axes.values()))),
    }
    for call in sides.values():
        once(call)
    turns = [{side: once(call) for side, call in sides.items()} for _ in range(max(5, repeat))]
    sums = {side: statistics.median([sum(turn[side]) for turn in turns]) for side in sides}
    ratio = statistics.median([sum(turn["allpairspy"]) / sum(turn["ours"]) for turn in turns])
    single = [statistics.median([turn["ours"][i] for turn in turns]) for i in range(4)]
    print("\nvLLM's four functions, summed, warm, verification included")
    print(f"  ours {shown(sums['ours'])} ({', '.join(map(shown, single))})  allpairspy {shown(sums['allpairspy'])}")
    print(f"  allpairspy / ours: median {ratio:.0f}  wanted >= 20")
    text = json.dumps(list(skinny_gemm().values()))
    first: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(max(5, repeat)):
        for side, seconds in first.items():
            command = [sys.executable, "-c", FIRST_CALL, side]
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
            seconds.append(float(done.stdout))
    ours, theirs = (statistics.median(first[side]) for side in ("ours", "allpairspy"))
    print(f"  first calls of a new process, imports included: ours {shown(ours)}, allpairspy {shown(theirs)}")


def machine() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    model = found[1] if found else platform.processor()
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(known_models()), metavar="NAME", help="default: all")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), metavar="NAME", help="default: all installed")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds that a peer may take for one model")
    wish = parser.parse_args()
    peers = installed() if wish.peers is None else [name for name in wish.peers if name in installed()]
    print(machine())
    lines = [["model", "rows", "ours", *itertools.chain.from_iterable(("rows", name) for name in peers)]]
    for name, known in known_models().items():
        if wish.models is None or name in wish.models:
            lines.append(measure(name, known, peers, wish.repeat, wish.limit))
            print(f"  {' | '.join(lines[-1])}", file=sys.stderr, flush=True)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if importlib.util.find_spec("allpairspy"):
        four_functions(wish.repeat)


if __name__ == "__main__":
    main()
