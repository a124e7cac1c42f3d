"""The console script: it finds a capability's command and reports refusals in two lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import testkit
from testkit.__main__ import capabilities_with_a_command, main

COMMAND = """
from testkit.errors import KitError

def main(argv):
    if argv == ["refuse"]:
        raise KitError("there is no run file in 'x'", "from --dir", "record one with --timing-dir=x")
    print("called with", *argv)
    return 7
"""


@pytest.fixture
def demo_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A capability with a command, found the same way as ours: a folder on the package's path."""
    folder = tmp_path / "demo_capability"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "cli.py").write_text(COMMAND)
    monkeypatch.setattr(testkit, "__path__", [*testkit.__path__, str(tmp_path)])
    monkeypatch.setattr(testkit, folder.name, None, raising=False)  # undone: the import binds the name
    yield folder.name
    for name in (f"testkit.{folder.name}", f"testkit.{folder.name}.cli"):
        sys.modules.pop(name, None)


def test_the_command_of_a_capability_gets_the_rest_of_the_line(
    demo_capability: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo_capability in capabilities_with_a_command()
    assert main([demo_capability, "show", "--all"]) == 7
    assert capsys.readouterr().out == "called with show --all\n"


def test_a_refusal_of_a_command_is_two_lines_and_exit_2(
    demo_capability: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([demo_capability, "refuse"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == ("testkit: there is no run file in 'x' (from --dir)\nnext: record one with --timing-dir=x\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "testkit: no capability named"),
        (["nonsense"], "testkit: unknown capability 'nonsense'"),
        (["errors"], "testkit: unknown capability 'errors'"),
        (["../x"], "testkit: unknown capability '../x'"),
        (["os.path"], "testkit: unknown capability 'os.path'"),
    ],
)
def test_an_unknown_capability_is_refused_with_the_known_ones(
    demo_capability: str, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == problem
    assert second.startswith("next: name one of: ")
    assert demo_capability in second


def test_without_any_command_the_refusal_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testkit, "__path__", [])
    assert main(["pairwise"]) == 2
    assert "no capability has a command yet" in capsys.readouterr().err
    assert main(["--help"]) == 0


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"testkit {testkit.__version__}\n"


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testkit", "nonsense"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("testkit: unknown capability 'nonsense'\nnext: ")
