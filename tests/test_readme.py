"""README and docs/: every block of code runs, and their tables hold exactly the names that pytest shows.

A block runs by its language: ``python`` with a test in it under pytest, other ``python`` as a script, ``ini`` and
``toml`` as the configuration of an empty suite. ``<!-- not run: reason -->`` on the line above leaves one out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import testkit

ROOT = Path(__file__).parent.parent
CAPABILITIES = sorted(face.parent.name for face in Path(testkit.__file__).parent.glob("*/__init__.py"))
WITH_PLUGIN = sorted(plugin.parent.name for plugin in Path(testkit.__file__).parent.glob("*/plugin.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
RUNNABLE = ("python", "ini", "toml")

Names = dict[str, set[str]]


def blocks() -> list[object]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block["language"] in RUNNABLE and not block["reason"]:
                line = text.count("\n", 0, block.start("text"))
                name = page.relative_to(ROOT).as_posix()
                found.append(pytest.param(block["language"], block["text"], id=f"{name}:{line}"))
    return found


@pytest.mark.parametrize(("language", "text"), blocks())
def test_a_block_of_code_runs_as_it_stands(pytester: pytest.Pytester, language: str, text: str) -> None:
    if language == "python" and "def test" not in text:
        (pytester.path / "block.py").write_text(text)
        done = subprocess.run([sys.executable, "block.py"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return
    names = {"python": "test_block.py", "ini": "pytest.ini", "toml": "pyproject.toml"}
    pytester.makepyfile(test_empty="def test_empty(): pass")
    (pytester.path / names[language]).write_text(text)
    result = pytester.runpytest_subprocess("-p", "testkit", "--strict-markers", "-W", "error")
    assert result.ret == 0


def cells(page: Path) -> set[str]:
    """Names in the first cells of the page's tables: `--option=VALUE` gives --option, `key=a|b` gives key."""
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    first = [row.replace(r"\|", "/").split("|")[1] for row in rows]
    return {name for cell in first for name in re.findall(r"`((?:--)?[a-z][\w-]*)[^`]*`", cell)}


def page_of(capability: str) -> Path:
    page = ROOT / "docs" / f"{capability}.md"
    if not page.is_file():
        pytest.skip(f"docs/{capability}.md is not written yet; test_architecture.py asks for it")
    return page


@pytest.fixture
def names_of(names_of_plugins, capability: str) -> Names:  # type: ignore[no-untyped-def]
    return names_of_plugins(f"testkit.{capability}.plugin")


@pytest.mark.parametrize("capability", WITH_PLUGIN)
def test_the_tables_of_a_page_hold_each_option_key_and_marker(capability: str, names_of: Names) -> None:
    listed = cells(page_of(capability))
    missing = {kind: sorted(names - listed) for kind, names in names_of.items()}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("capability", WITH_PLUGIN)
def test_the_tables_of_a_page_list_no_option_that_is_not_there(capability: str, names_of: Names) -> None:
    options = {name for name in cells(page_of(capability)) if name.startswith("--")}
    assert options <= names_of["options"]


def test_readme_has_one_row_a_capability_and_names_no_option_that_is_not_there(our_names: Names) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("|")]
    for capability in CAPABILITIES:
        assert [row for row in table if f"docs/{capability}.md" in row], capability
    spoken_of = {
        name for name in re.findall(r"(--[a-z][\w-]*)", text) if name.lstrip("-").startswith(tuple(CAPABILITIES))
    }
    assert spoken_of <= our_names["options"]


def test_the_example_of_the_readme_prints_what_the_readme_shows(pytester: pytest.Pytester) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example, shown = re.search(r"^```python\n(.*?)^```\n\n```\n\$ pytest\n(.*?)^```", text, re.M | re.S).groups()
    pytester.makepyfile(test_gemm=example)
    printed = pytester.runpytest_subprocess("-p", "testkit").outlines
    for line in filter(None, shown.splitlines()):
        # Seconds differ, and with them the fill of the closing line.
        assert re.sub(r"=| in [\d.]+s", "", line) in [re.sub(r"=| in [\d.]+s", "", other) for other in printed]


def test_links_between_our_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        if not page.is_file():
            continue
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_cells_of_a_table_are_read_by_their_first_column(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| option | ini |\n|---|---|\n| `--pairwise-over=N` | `x` |\n| `cleanup_scope=a\\|b`, `pairwise` | |\n"
    )
    assert cells(page) == {"--pairwise-over", "cleanup_scope", "pairwise"}
