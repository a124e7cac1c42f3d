"""The simulated device: its checks run in one child, and are told apart here; its refusals need no device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import SyncsError

torch = pytest.importorskip("torch")

CHILD = Path(__file__).with_name("on_simulated.py")
SECONDS = 300
NAMES = [
    *(line[4 : line.index("(")] for line in CHILD.read_text(encoding="utf-8").split("@check\n")[1:]),
    "what_was_replaced_is_put_back_and_it_can_be_entered_again",
]


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    # Entering the device, and what it changes, warn of nothing; this one is torch's on every device.
    command = [sys.executable, "-W", "error", "-W", "ignore:Sparse CSR tensor support", str(CHILD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_on_the_simulated_device(name: str, failures: dict[str, str]) -> None:
    assert not failures[name], failures[name]


def test_every_check_is_told_apart(failures: dict[str, str]) -> None:
    assert sorted(failures) == sorted(NAMES)
    assert len(NAMES) > 20


def test_a_torch_without_the_python_backend_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import backend_registration

    from testkit.syncs._backend import install

    monkeypatch.delattr(backend_registration, "_setup_privateuseone_for_python_backend")
    monkeypatch.setattr(torch, "__version__", "2.7.1")
    with pytest.raises(SyncsError, match=r"torch 2\.7\.1 has no Python backend \(simulated\(\)\)"):
        install.__wrapped__()


def test_another_backend_in_the_process_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    from testkit.syncs._backend import install

    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    with pytest.raises(SyncsError, match=r"already has the backend 'npu'(?s:.*)fresh_process"):
        install.__wrapped__()


def kernels_that_are_none() -> list[Any]:
    return [{"add": len}, {"aten::add": 3}]


@pytest.mark.parametrize("kernels", kernels_that_are_none(), ids=["no namespace", "no function"])
def test_a_kernel_that_is_none_is_refused_before_anything_is_set_up(kernels: Any) -> None:
    from testkit.syncs import simulated

    with pytest.raises(SyncsError, match="is no kernel"), simulated(kernels=kernels):
        pass
