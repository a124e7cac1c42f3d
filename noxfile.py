"""Sessions for contributors: ``nox -s lint types tests minimums wheel``. ``make test`` needs none of them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]

# Everything the tests read, except the package itself.
BESIDE_THE_PACKAGE = [
    "tests",
    "examples",
    "benchmarks",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "pyproject.toml",
]
PYTEST = ["python", "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not long"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style, by ruff."""
    session.install("ruff>=0.8")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy strict over the package and the user's view of it."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests with the newest of everything; another Python with ``--force-python 3.13``."""
    session.install("-e", ".[test]")
    session.run(*PYTEST, *session.posargs)


@nox.session
def minimums(session: nox.Session) -> None:
    """All tests with the oldest pytest and plugins that we say we support."""
    # One resolver call: a second one could move pytest again.
    session.install("-e", ".[test]", "pytest==8.0.*", "pytest-xdist==3.5.*", "allpairspy==2.5.0", "cloudpickle==3.0.*")
    session.run(*PYTEST, *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel and test it outside the checkout, where only the wheel can be imported."""
    session.install("build>=1.2")
    # Not session.create_tmp(): it lies in the checkout, whose conftest.py and pyproject.toml pytest would find.
    with tempfile.TemporaryDirectory() as name:
        outside = Path(name)
        # By way of the sdist: a wheel built in the checkout would hold what an old build/ folder still has.
        session.run("python", "-m", "build", "--outdir", str(outside / "dist"), silent=True)
        built = next((outside / "dist").glob("*.whl"))
        session.install(f"kernel-testkit[test] @ {built.as_uri()}")
        copy_what_tests_read(outside / "tree")
        with session.chdir(outside / "tree"):
            where = session.run("python", "-c", "import testkit; print(testkit.__file__)", silent=True)
            if "site-packages" not in str(where):
                session.error(f"the checkout was imported, not the wheel: {where}")
            session.run(*PYTEST, *session.posargs)


def copy_what_tests_read(target: Path) -> None:
    target.mkdir()
    for name in BESIDE_THE_PACKAGE:
        if Path(name).is_dir():
            shutil.copytree(name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(name, target / name)
