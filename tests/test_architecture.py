"""The house's rules, read from the source with ``ast``: who may import what, how a face looks, how long things are."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import testkit

PACKAGE = Path(testkit.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
CAPABILITIES = sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))

# A capability may call another's face along these arrows, inside a function.
ARROWS = {
    ("matrix", "pairwise"),
    ("pairwise", "timing"),
    ("gpus", "timing"),
    ("timing", "environment"),
    ("processes", "gpus"),
    ("syncs", "processes"),
    ("laws", "processes"),
}
MAY_IMPORT_PYTEST = {"plugin.py", "fixtures.py"}
PYTEST = {"pytest", "_pytest", "xdist", "pluggy"}
HEAVY = {"torch", "numpy", "allpairspy", "duckdb", "jinja2", "psutil", "cloudpickle", "ruamel", "tomli", "tomllib"}
LINES_OF_A_MODULE = 400
LINES_OF_A_FUNCTION = 60


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, inside_functions: bool = False) -> Iterator[str]:
    """Absolute names of the modules that ``path`` imports at module level, or inside its functions."""
    top = parsed(path).body if not inside_functions else functions(path)
    todo: list[ast.AST] = list(top)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            yield base
            # `from testkit.pairwise import _model` names a module where such a module exists.
            yield from (f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES)
        elif inside_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = dotted(path).split(".") if path.name == "__init__.py" else dotted(path).split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join(base + ([node.module] if node.module else []))


def functions(path: Path) -> list[ast.AST]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


MODULES = {dotted(path): path for path in FILES}
each_file = pytest.mark.parametrize("path", FILES, ids=short)
each_capability = pytest.mark.parametrize("capability", CAPABILITIES)


@each_file
def test_only_plugins_and_fixtures_import_pytest_at_module_level(path: Path) -> None:
    found = {name for name in imports(path) if name.split(".")[0] in PYTEST}
    assert path.name in MAY_IMPORT_PYTEST or not found


@each_file
def test_heavy_libraries_are_never_imported_at_module_level(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] in HEAVY}


@each_file
def test_capabilities_meet_only_along_the_arrows_and_inside_functions(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0]
    if own not in CAPABILITIES:
        own = ""
    for inside in (False, True):
        for name in imports(path, inside_functions=inside):
            parts = name.split(".")
            other = parts[1] if parts[0] == "testkit" and len(parts) > 1 else own
            if other not in CAPABILITIES or other == own:
                continue
            assert inside, f"{short(path)} imports {name} at module level"
            assert (own, other) in ARROWS, f"{short(path)}: {own or 'the cellar'} -> {other} is no arrow of the house"
            assert len(parts) == 2, f"{short(path)} reaches past the face of {other}: {name}"


@pytest.mark.parametrize("path", [p for p in FILES if p.name not in MAY_IMPORT_PYTEST | {"cli.py"}], ids=short)
def test_cores_do_not_import_their_own_plugin_or_command(path: Path) -> None:
    upward = {"plugin", "fixtures", "cli"}
    assert not {name for name in imports(path) if name.startswith("testkit.") and name.split(".")[-1] in upward}


def test_there_is_no_import_cycle() -> None:
    graph = {
        name: {other for other in imports(path) if other in MODULES and other != name} for name, path in MODULES.items()
    }
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle
    assert len(order) == len(MODULES)


@each_capability
def test_a_face_exports_and_does_nothing(capability: str) -> None:
    tree = parsed(PACKAGE / capability / "__init__.py")
    assert ast.get_docstring(tree)
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.If, ast.Expr)
    for node in tree.body:
        assert isinstance(node, allowed), ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            assert node.name in ("__getattr__", "__dir__"), f"a face defines {node.name}"
        if isinstance(node, ast.If):
            assert "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant), ast.unparse(node)


@each_capability
def test_dir_of_a_face_shows_its_exports_and_each_can_be_had(capability: str) -> None:
    face = importlib.import_module(f"testkit.{capability}")
    assert dir(face) == sorted(face.__all__)
    for name in face.__all__:
        assert getattr(face, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = face.no_such_name


@each_file
def test_pytest_would_not_collect_a_public_name_of_ours(path: Path) -> None:
    """A suite imports our names into its test modules, where pytest looks for Test* and test*."""
    names: set[str] = set()
    for node in parsed(path).body:
        names.add(getattr(node, "name", ""))
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    assert not {name for name in names if re.match("[Tt]est", name)}


@each_file
def test_modules_and_functions_stay_readable(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LINES_OF_A_MODULE, f"{short(path)} has {lines} lines"
    for node in functions(path):
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        assert size <= LINES_OF_A_FUNCTION, f"{short(path)}: {node.name} has {size} lines"


@each_file
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


@each_capability
def test_a_capability_has_its_tests_and_its_page(capability: str) -> None:
    root = Path(__file__).parent.parent
    assert list((root / "tests" / capability).glob("test_*.py"))
    assert (root / "docs" / f"{capability}.md").is_file()


def test_the_reader_of_imports_sees_what_it_should(tmp_path: Path) -> None:
    """The rules above hold only if ``imports`` finds things: all spellings in one file."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import hidden\nelse:\n    import shown\n"
        "try:\n    import a.b\nexcept ImportError:\n    from c import d\n"
        "class K:\n    import e\n"
        "def f():\n    import g\n    with h:\n        import i\n"
    )
    global_names = set(imports(probe))
    assert global_names == {"typing", "shown", "a.b", "c", "e"}
    assert set(imports(probe, inside_functions=True)) == {"g", "i"}
