"""Each module of ours, imported alone in a fresh interpreter: what it drags in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import testkit

PACKAGE = Path(testkit.__file__).parent
WATCHED = ("pytest", "_pytest", "xdist", "torch", "numpy", "allpairspy", "psutil", "cloudpickle", "jinja2", "duckdb")
PYTEST_SIDE = {"plugin", "fixtures"}


def module_names() -> list[str]:
    parts = [path.relative_to(PACKAGE.parent).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts]


def loaded_by(statement: str) -> set[str]:
    """Which of the watched modules are there after ``statement``, in an interpreter of its own."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {WATCHED!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", module_names())
def test_a_module_can_be_imported_alone_and_brings_nothing_heavy(name: str) -> None:
    allowed = {"pytest", "_pytest", "xdist"} if name.split(".")[-1] in PYTEST_SIDE else set()
    assert loaded_by(f"import {name}") <= allowed


def test_dir_of_the_faces_imports_nothing_heavy() -> None:
    assert loaded_by("import testkit.pairwise, testkit.cleanup; dir(testkit.pairwise), dir(testkit.cleanup)") == set()


def test_sampling_and_measuring_need_neither_pytest_nor_numpy() -> None:
    statement = (
        "from testkit.pairwise import coverage, sample\n"
        "axes = {'a': [1, 2], 'b': [1, 2], 'c': [1, 2]}\n"
        "assert coverage(axes, sample(axes).rows).percent == 100"
    )
    assert loaded_by(statement) == set()
