"""torch comes in while a region is open: what it waits for then counts as well. A module of that name stands in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TORCH = """
import warnings
from types import SimpleNamespace
mode = 0
def set_mode(value):
    global mode
    mode = value
def is_compiling(): return False
compiler = SimpleNamespace(is_compiling=is_compiling)
class Tensor:
    def to(self, *args, **kwargs):
        return self
    cuda = copy_ = to
cuda = SimpleNamespace(
    is_initialized=lambda: {started}, is_available=lambda: True, device_count=lambda: 1, _is_compiled=lambda: True,
    get_sync_debug_mode=lambda: mode, set_sync_debug_mode=set_mode, synchronize=lambda: None,
    _lazy_call=lambda call: queued.append(call))
queued = []
def start():
    cuda.is_initialized = lambda: True
    [call() for call in queued]
def item():
    if mode:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)
"""
BODIES = {
    "a wait": "    torch.item()",
    "a synchronize": "    torch.cuda.synchronize()",
    "a start and a wait": "    torch.start(); torch.item()",
}


def run(folder: Path, script: str, started: bool = True) -> list[str]:
    (folder / "torch.py").write_text(TORCH.replace("{started}", str(started)))
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path[:0] = [{str(folder)!r}, {root!r}]\n{script}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("body", BODIES)
def test_what_waits_in_a_torch_that_is_imported_inside_is_an_error(tmp_path: Path, body: str) -> None:
    script = f"""
from testkit.errors import SyncsError
from testkit.syncs import forbid
try:
  with forbid():
    import torch
{BODIES[body]}
except SyncsError as error:
  print("heard")
ours = [one for one in sys.meta_path if "testkit" in type(one).__module__]
print(torch.cuda.get_sync_debug_mode(), ours)
"""
    assert run(tmp_path, script, started=body != "a start and a wait") == ["heard", "0 []"]


def test_a_torch_imported_inside_that_waits_for_nothing_is_fine(tmp_path: Path) -> None:
    script = """
from testkit.syncs import forbid
with forbid():
    import torch
    assert torch.cuda.get_sync_debug_mode() == 1
    assert hasattr(torch.Tensor.to, "__wrapped__")
wrapped = hasattr(torch.Tensor.to, "__wrapped__")
print(torch.cuda.get_sync_debug_mode(), wrapped, "exec_module" in vars(torch.__loader__))
"""
    assert run(tmp_path, script) == ["0 False False"]


UNHEARD = """
from importlib.machinery import ModuleSpec
class Loader:
    __slots__ = ()
    def create_module(self, spec): return None
    def exec_module(self, module): exec(open(FILE).read(), module.__dict__)
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, Loader()) if name == "torch" else None
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("block", ["forbid", "census"])
def test_a_torch_that_comes_in_unheard_is_an_error_of_a_guard_and_said_by_a_census(tmp_path: Path, block: str) -> None:
    script = (
        UNHEARD.replace("FILE", repr(str(tmp_path / "torch.py")))
        + f"""
from testkit.errors import SyncsError
from testkit.syncs import {block}
try:
    with {block}() as seen:
        import torch
    print(seen.text())
except SyncsError as error:
    print(str(error).splitlines()[0])
"""
    )
    (line,) = run(tmp_path, script)
    assert "waits may have gone unseen: torch.cuda came in without a word" in line
    assert line.startswith("syncs: no wait of the host could be seen: " if block == "census" else "syncs: waits may")


def test_an_import_that_fails_is_its_own_error_and_can_be_tried_again(tmp_path: Path) -> None:
    script = """
from testkit.syncs import forbid
source = open(FILE).read()
open(FILE, "w").write("raise ValueError(3)  # broken")
with forbid():
    for _ in range(2):
        try:
            import torch
        except ValueError as error:
            print(error)
""".replace("FILE", repr(str(tmp_path / "torch.py")))
    assert run(tmp_path, "sys.dont_write_bytecode = True" + script) == ["3", "3"]
