"""``testkit environment show|diff``: as a program, over clean virtual environments, and its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_machines import image, put

import testkit
from testkit.__main__ import main
from testkit.environment._snapshot import READERS, take, to_json

HERE = Path(testkit.__file__).parents[1]
Made = Callable[..., Path]


def test_show_is_a_table_of_every_fact_with_how_it_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environment", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["| fact | value | read from |", "|---|---|---|"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(READERS)
    assert f"| {sys.executable} |" in "\n".join(lines)


def test_diff_reads_what_show_printed_and_finds_nothing_between_two_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.json", "b.json"):
        assert main(["environment", "show", "--format", "json"]) == 0
        put(tmp_path, name, capsys.readouterr().out)
    assert main(["environment", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_diff_exits_with_1_only_if_something_that_matters_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "a", to_json(take(image(tmp_path / "one"))))
    put(tmp_path, "b", to_json(take(image(tmp_path / "two", packages=()))))
    put(tmp_path, "c", to_json(take(image(tmp_path / "three", libc="glibc 2.39", packages=()))))
    places = {name: str(tmp_path / name) for name in "abc"}
    assert main(["environment", "diff", places["a"], places["b"]]) == 1  # triton is gone
    assert "| triton | 3.2.0 | none | it generates other kernels |" in capsys.readouterr().out
    assert main(["environment", "diff", places["b"], places["c"], "--format", "json"]) == 1
    [found] = json.loads(capsys.readouterr().out)["differences"]
    assert (found["name"], found["before"], found["after"]) == ("glibc", "2.35", "2.39")
    lesser = to_json(take(image(tmp_path / "four", packages=("numpy-2.1.3", "triton-3.2.0"))))
    put(tmp_path, "d", lesser)
    put(tmp_path, "e", lesser.replace('"numpy": "2.1.3"', '"numpy": "2.1.4"'))
    assert main(["environment", "diff", str(tmp_path / "d"), str(tmp_path / "e")]) == 0
    assert "| package numpy | 2.1.3 | 2.1.4 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "environment: the following arguments are required: VERB (command line)"),
        (["shwo"], "environment: argument VERB: invalid choice: 'shwo'"),
        (["show", "--format", "yaml"], "environment: argument --format: invalid choice: 'yaml'"),
        (["diff", "a.json"], "environment: the following arguments are required: FILE (command line)"),
        (["diff", "nowhere.json", "b.json"], "environment: cannot read nowhere.json: No such file or directory"),
        (
            ["diff", "text.json", "text.json"],
            "environment: no JSON: Expecting value: line 1 column 1 (char 0) (in text",
        ),
        (["diff", "bytes.json", "b.json"], "environment: cannot read bytes.json: 'utf-8' codec can't decode"),
    ],
)
def test_bad_input_is_refused_in_two_lines(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.json").write_text("kernel: 6.8\n")
    Path("bytes.json").write_bytes(b"\xff\xfe")
    assert main(["environment", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    assert first.startswith(said)
    assert second.startswith("next: ")


def test_help_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["environment", "--help"]) == 0
    assert "show" in capsys.readouterr().out


# clean virtual environments


def wheel(folder: Path, name: str, version: str) -> Path:
    """A package with one empty module, as pip installs it."""
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: planted\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shown(tmp_path: Path) -> Made:
    """Write what ``show`` prints in a clean virtual environment with these packages; testkit itself is only found."""

    def shown(name: str, packages: dict[str, str], **variables: str) -> Path:
        folder = tmp_path / name
        venv.create(folder, with_pip=False, symlinks=True)
        python = folder / "bin" / "python"
        wheels = [str(wheel(tmp_path, package, version)) for package, version in packages.items()]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
        subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", *wheels], check=True, timeout=120)
        code = f"import sys; sys.path.append({str(HERE)!r}); sys.argv[:] = ['testkit', *sys.argv[1:]]\n"
        code += "from testkit.__main__ import main; sys.exit(main())"
        environment = {"PATH": os.environ["PATH"], **variables}
        done = subprocess.run(
            [str(python), "-I", "-c", code, "environment", "show", "--format", "json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        put(tmp_path, f"{name}.json", done.stdout)
        return tmp_path / f"{name}.json"

    return shown


def test_two_virtual_environments_differ_exactly_in_what_was_installed_and_set(
    shown: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shown("old", {"planted_one": "1.0", "planted_two": "2.0", "triton": "3.2.0"}, NCCL_DEBUG="INFO")
    same = shown("same", {"triton": "3.2.0", "planted_two": "2.0", "planted_one": "1.0"}, NCCL_DEBUG="INFO")
    after = shown("new", {"planted_one": "1.1", "planted_two": "2.0", "triton": "3.4.0"}, NCCL_DEBUG="WARN")
    assert main(["environment", "diff", str(before), str(same)]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["environment", "diff", str(before), str(after), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["differences"]
    assert [(one["name"], one["before"], one["after"], bool(one["matters"])) for one in found] == [
        ("triton", "3.2.0", "3.4.0", True),
        ("variable NCCL_DEBUG", "INFO", "WARN", True),
        ("package planted-one", "1.0", "1.1", False),
        ("package triton", "3.2.0", "3.4.0", False),
    ]
