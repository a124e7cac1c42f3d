"""Files into values: the words and numbers of YAML 1.2, TOML, JSON, and files that cannot be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testkit.errors import KitWarning, MatrixError
from testkit.matrix._yaml import read_file


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on: push", {"on": "push"}),
        ("[yes, no, on, off, Y, n]", ["yes", "no", "on", "off", "Y", "n"]),
        ("[true, True, FALSE]", [True, True, False]),
        ("[null, ~, Null, '']", [None, None, None, ""]),
        ("[1, -2, 0o14, 0x1F, 014]", [1, -2, 12, 31, 14]),
        ("[0b11, 1_000, 1_0.5]", ["0b11", "1_000", "1_0.5"]),
        ("[3.11, 1e3, .5, -1.5]", [3.11, 1000.0, 0.5, -1.5]),
        ("['3.10', \"3.10\", 12.4.1, 1:30]", ["3.10", "3.10", "12.4.1", "1:30"]),
        ("[2026-11-30, 2026-11-30T01:02:03Z]", ["2026-11-30", "2026-11-30T01:02:03Z"]),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("", None),
    ],
)
def test_yaml_is_read_by_the_rules_of_1_2(tmp_path: Path, text: str, value: object) -> None:
    assert read_file(written(tmp_path, "a.yml", text)) == value
    assert repr(read_file(written(tmp_path, "b.yaml", text))) == repr(value)


def test_a_version_that_yaml_takes_for_a_number_is_warned_of_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "ci.yml", "a: 1\npython: [3.11, 3.10]\n")
    with pytest.warns(KitWarning, match=r"3\.10 is the number 3\.1 \(.*ci\.yml, line 2\)\nnext: quote it"):
        assert read_file(path) == {"a": 1, "python": [3.11, 3.1]}


def test_the_readers_of_others_are_left_as_they_were(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    read_file(written(tmp_path, "a.yml", "a: 2026-11-30"))
    assert type(YAML(typ="safe", pure=True).load("2026-11-30")).__name__ == "date"


def test_toml_and_json_are_read_too(tmp_path: Path) -> None:
    assert read_file(written(tmp_path, "a.toml", 'python = ["3.10"]\n[[include]]\ngpu = "l4"\n')) == {
        "python": ["3.10"],
        "include": [{"gpu": "l4"}],
    }
    assert read_file(written(tmp_path, "a.json", '[{"gpu": "l4"}]')) == [{"gpu": "l4"}]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yml", "a: 1\na: 2", 'no valid YAML: found duplicate key "a" .*, line 2'),
        ("a.yml", "a: [1", "no valid YAML: .*line 1"),
        ("a.yml", "a: 1\n---\nb: 2", "no valid YAML: but found another document, line 2"),
        ("a.yml", "a: !reference [x]", "no valid YAML: .*!reference.*line 1"),
        ("a.yml", "a: \x01", "no valid YAML: "),
        ("a.json", "{", "no valid JSON: .*line 1"),
        ("a.toml", "a = ]", "no valid TOML: .*line 1"),
        ("a.txt", "a", r"a.txt is no .yml, .yaml, .toml, .json file"),
    ],
)
def test_a_file_that_is_broken_is_named_with_the_place(tmp_path: Path, name: str, text: str, problem: str) -> None:
    with pytest.raises(MatrixError, match=problem) as refused:
        read_file(written(tmp_path, name, text))
    assert name in str(refused.value)
    assert str(refused.value).count("\n") == 1


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"cannot read .*none\.yml: No such file"):
        read_file(tmp_path / "none.yml")
    (tmp_path / "a.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(MatrixError, match=r"cannot read .*a\.yml: not UTF-8"):
        read_file(tmp_path / "a.yml")


@pytest.mark.parametrize(("name", "module"), [("a.yml", "ruamel.yaml"), ("a.toml", "tomllib")])
def test_a_reader_that_is_not_installed_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    if module == "tomllib" and sys.version_info < (3, 11):
        module = "tomli"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MatrixError, match=r"is not installed\nnext: pip install kernel-testkit\[matrix\]"):
        read_file(written(tmp_path, name, "a: 1"))


def test_nothing_but_a_yaml_file_imports_ruamel(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '{"gpu": ["l4"]}')
    program = (
        "import sys, testkit.matrix.cli as cli\n"
        "from testkit.matrix import load_recipe, parametrize_from, select_strategy\n"
        f"assert cli.main([{str(path)!r}]) == 0\n"
        "assert not [name for name in sys.modules if name.startswith('ruamel')]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
