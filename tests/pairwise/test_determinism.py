"""The same rows in every process: any hash seed, any supported Python, whatever ran before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import testkit

ROOT = Path(testkit.__file__).parents[1]
HERE = Path(__file__).parent

DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from covering_models import known_models
from testkit.pairwise import sample
small = {"krc", "wvsplitk", "fp8", "llmm1", "krc full n,k,m", "krc too-large rule", "3^4", "8^8", "2^100", "15^4",
         "3^13", "5^10", "TCAS t=2", "TCAS t=3", "spins", "bugzilla"}
digest = hashlib.sha256()
models = {name: known for name, known in known_models().items() if name in small}
for name, known in models.items():
    for seed in (0, 1):
        rows = sample(known.axes, seed=seed, effort=2_000, **known.options).rows
        digest.update(repr([name, [list(row.values()) for row in rows]]).encode())
kept = sample({"b": {"x", "y", "z"}, "n,k": [(1, 2), (3, 4)], "m": [0, 1]}, keep={"n": 3, "b": "y"}, strength=3).rows
digest.update(repr(kept).encode())
print(len(models), digest.hexdigest())
"""


def digest(python: str, hash_seed: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [python, "-c", DIGEST, str(HERE)], env=environment, capture_output=True, text=True, timeout=300
    )


@cache
def ours() -> str:
    done = digest(sys.executable, "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("16 ")
    return done.stdout


@pytest.mark.parametrize("hash_seed", ["1", "2", "3", "4294967295"])
def test_rows_are_the_same_under_any_hash_seed(hash_seed: str) -> None:
    assert digest(sys.executable, hash_seed).stdout == ours()


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_rows_are_the_same_under_any_python(version: str) -> None:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip(f"this is Python {version}, and the other versions are compared with it")
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"there is no python{version} here")
    environment = {**os.environ, "PYENV_VERSION": pyenv_version(version)}
    environment = {name: value for name, value in environment.items() if value}
    started = subprocess.run(
        [python, "-c", "import sys; print(sys.executable)"], env=environment, capture_output=True, text=True, timeout=60
    )
    if started.returncode:
        pytest.skip(f"python{version} does not start: {started.stderr.strip().splitlines()[0]}")
    done = digest(started.stdout.strip(), "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ours()


def pyenv_version(version: str) -> str:
    """The newest release of this version that pyenv has, where it is the one to start it."""
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return ""
    listed = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True, timeout=60).stdout.split()
    return max((name for name in listed if name.startswith(f"{version}.")), default="")
