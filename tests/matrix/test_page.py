"""docs/matrix.md: the command does with the page's files what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testkit.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "matrix.md").read_text(encoding="utf-8")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The page's console blocks; its first file is ci.yml, and by_hand.yml is the example's."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    Path("ci.yml").write_text(blocks[0])
    Path("workflow.yml").write_text(blocks[1])
    Path("by_hand.yml").write_text((ROOT / "examples" / "ci_matrix" / "ci_matrix" / "by_hand.yml").read_text())
    return re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.M | re.S)


def test_the_summary_is_the_one_shown(shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "ci.yml", "--format", "github"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith('matrix={"include":[')
    assert said.err == shown[0].split("\n", 1)[1]


def test_the_check_is_the_one_shown(shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "by_hand.yml", "--check", "--against", "ci.yml"]) == 1
    printed = capsys.readouterr().out.splitlines()
    head, tail = shown[1].splitlines()[1:5], shown[1].splitlines()[-1]
    assert printed[:4] == head
    assert printed[-1] == tail


def test_a_dynamic_matrix_is_refused_as_shown(shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("workflow.yml").read_text().replace("needs.plan", "needs.setup")
    Path("ci.yml").write_text(text)
    assert main(["matrix", "ci.yml"]) == 2
    assert capsys.readouterr().err == shown[2].split("\n", 1)[1]


def test_an_unknown_strategy_is_refused_as_shown(shown: list[str]) -> None:
    from testkit.errors import MatrixError
    from testkit.matrix import load_recipe, select_strategy

    Path("recipe.yml").write_text("strategies: {recommended: tp, alternatives: [ep]}")
    with pytest.raises(MatrixError, match="no strategy 'pp'") as refused:
        select_strategy(load_recipe("recipe.yml"), "pp")
    assert str(refused.value) in PAGE
