"""``assert_platform_choices``: gates with planted bugs and healthy ones, its refusals, its table, its simulation."""

from __future__ import annotations

import enum
import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testkit.errors import LawsError, ProcessesError
from testkit.laws import LawBroken, assert_platform_choices, torch_answers
from testkit.laws._choices import Refused, differences, plain

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ranks need POSIX")

# An engine in miniature. Its platform module would ask torch; here nobody answers unless it is simulated.
PLATFORM = """
import functools

def arch():
    return "cpu"

def capability():
    raise RuntimeError("no NVIDIA device")

@functools.cache
def is_rocm():
    return False

def is_cuda():
    return False

def on_gfx9():
    return is_rocm() and arch().startswith("gfx9")

class Platform:
    @property
    def name(self):
        return "cpu"

    def has_capability(self, major, minor=0):
        return False

    @staticmethod
    def count():
        return 0

current = Platform()
WAVE = 32
"""
NATIVE = "def topk(): ...\ndef norm(): ...\n"
TRITON = "def topk(): ...\ndef norm(): ...\n"
CUDA = "def topk(): ...\n"
OPS = """
import importlib.util
from engine import platform

def has_aiter(op):
    if importlib.util.find_spec("aiterlike") is None:
        return False
    import aiterlike
    return hasattr(aiterlike, op)

def choose():
    return {op: choice(op) for op in ("topk", "norm")}

def choice(op):
    if platform.is_rocm():
        return "aiter" if has_aiter(op) else "triton"
    if platform.is_cuda() and op == "topk" and platform.capability() >= (9, 0):
        return "cuda"
    return "native" if not platform.is_cuda() else "triton"
"""
SUITE = {"__init__": "", "platform": PLATFORM, "native": NATIVE, "triton": TRITON, "cuda": CUDA, "ops": OPS}


def row(arch: str, cuda: tuple[int, int] | None = None, aiter: list[str] | None = None) -> dict[str, Any]:
    return {
        "engine.platform:arch": arch,
        "engine.platform:is_rocm": arch.startswith("gfx"),
        "engine.platform:is_cuda": cuda is not None,
        "engine.platform:capability": cuda if cuda else functools.partial(fail, arch),
        "aiterlike": aiter,
    }


def fail(arch: str) -> None:
    raise RuntimeError(f"no NVIDIA device on {arch}")


PLATFORMS = {
    "cpu": row("cpu"),
    "sm90": row("sm90", (9, 0)),
    "sm100": row("sm100", (10, 0)),
    "gfx942": row("gfx942:sramecc+:xnack-", aiter=["topk", "norm"]),
    "gfx1100": row("gfx1100", aiter=["norm"]),
}
OPS_PLACES = {
    "aiter": "aiterlike:norm",
    "triton": ["engine.triton:topk", "engine.triton:norm"],
    "cuda": "engine.cuda:topk",
    "native": ["engine.native:topk", "engine.native:norm"],
}
EXPECTED = {
    "cpu": {"topk": "native", "norm": "native"},
    "sm90": {"topk": "cuda", "norm": "triton"},
    "sm100": {"topk": "cuda", "norm": "triton"},
    "gfx942": {"topk": "aiter", "norm": "aiter"},
    "gfx1100": {"topk": "triton", "norm": "aiter"},
}

Engine = Callable[..., None]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Write the engine, with other texts for some of its modules."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**modules: str) -> None:
        (tmp_path / "engine").mkdir()
        for name, text in {**SUITE, **modules}.items():
            (tmp_path / "engine" / f"{name}.py").write_text(text)

    return write


def judge(**changes: Any) -> Any:
    given = {"decide": "engine.ops:choose", "platforms": PLATFORMS, "expected": EXPECTED, "ops": OPS_PLACES, **changes}
    return assert_platform_choices(**given)


# healthy gates

AT_IMPORT = """
from engine.platform import arch, is_rocm, is_cuda, capability
try:
    import aiterlike
except ImportError:
    aiterlike = None
ROCM, SM90 = is_rocm(), is_cuda() and capability() >= (9, 0)
TABLE = {
    op: "aiter" if ROCM and hasattr(aiterlike, op) else "triton" if ROCM
    else "cuda" if SM90 and op == "topk" else "triton" if is_cuda() else "native"
    for op in ("topk", "norm")
}
"""
CACHED = (
    OPS
    + """
import functools
has_aiter = functools.cache(has_aiter)
choice = functools.lru_cache(maxsize=None)(choice)
"""
)
BY_CLASS = (
    OPS
    + """
class Gate:
    ROCM = platform.is_rocm()
    _supported = None

    @classmethod
    def supported(cls):
        if cls._supported is None:
            cls._supported = [op for op in ("topk", "norm") if has_aiter(op)]
        return cls._supported

def choose():
    return {
        op: "aiter" if Gate.ROCM and op in Gate.supported() else "triton" if Gate.ROCM else choice(op)
        for op in ("topk", "norm")
    }
"""
)
RESET = (
    OPS
    + """
def choose():
    platform.is_rocm.cache_clear()
    return {op: choice(op) for op in ("topk", "norm")}
"""
)
HEALTHY: dict[str, dict[str, Any]] = {
    "asks when it is called": {},
    "decides at its import": {"decide": "engine.ops:TABLE", "ops_text": AT_IMPORT},
    "is imported by its own package": {
        "decide": "engine.ops:TABLE",
        "ops_text": AT_IMPORT,
        "init": "from engine import ops",
    },
    "keeps its answers in caches": {"ops_text": CACHED},
    "keeps its answers in a class": {"ops_text": BY_CLASS},
    "empties the cache of a predicate": {"ops_text": RESET},
}


@pytest.mark.parametrize("change", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_gate_raises_no_alarm(engine: Engine, change: dict[str, Any]) -> None:
    engine(ops=change.get("ops_text", OPS), __init__=change.get("init", ""))
    assert judge(decide=change.get("decide", "engine.ops:choose")) == EXPECTED


# planted bugs: what is wrong in the engine, and what the failure says


def changed(old: str, new: str, text: str = OPS) -> str:
    assert old in text
    return text.replace(old, new)


BUGS: dict[str, tuple[dict[str, str], str]] = {
    "the guard is loosened for the whole library": (
        {"ops": changed('"aiter" if has_aiter(op) else "triton"', '"aiter"')},
        "on gfx1100 topk is aiter, not triton",
    ),
    "a family is told by the beginning of its name": (
        {"ops": changed("if platform.is_rocm():", 'if platform.arch().startswith("gfx9"):')},
        "on gfx1100 topk is native, not triton, and 1 more",
    ),
    "the name of the target is compared with its features": (
        {"ops": changed("has_aiter(op) else", 'has_aiter(op) and platform.arch() in ("gfx942", "gfx1100") else')},
        "on gfx942 topk is triton, not aiter, and 1 more",
    ),
    "a capability is compared as text": (
        {"ops": changed("platform.capability() >= (9, 0)", "str(platform.capability()) >= '(9, 0)'")},
        "on sm100 topk is triton, not cuda",
    ),
    "a capability is compared with one card's": (
        {"ops": changed("platform.capability() >= (9, 0)", "platform.capability() == (9, 0)")},
        "on sm100 topk is triton, not cuda",
    ),
    "the capability is asked before it is known to be NVIDIA": (
        {
            "ops": changed(
                'if platform.is_cuda() and op == "topk" and platform.capability() >= (9, 0)',
                'if op == "topk" and platform.capability() >= (9, 0)',
            )
        },
        "on cpu decide raised RuntimeError: no NVIDIA device on cpu (",
    ),
    "the library is imported where it is not": (
        {"ops": "import aiterlike\n" + OPS},
        "on cpu, sm90, sm100 decide raised ModuleNotFoundError: import of aiterlike halted; None in sys.modules (",
    ),
    "the library is asked without an import of its part": (
        {"ops": changed("return hasattr(aiterlike, op)", "from aiterlike import topk; return True")},
        "on gfx1100 decide raised ImportError: cannot import name 'topk' from 'aiterlike' (",
    ),
    "the fallback was renamed in one place": (
        {"triton": changed("def topk", "def top_k", TRITON)},
        "on sm90 norm: triton cannot be had: AttributeError: module 'engine.triton' has no attribute 'topk', and ",
    ),
    "the fallback is None where its import failed": (
        {"triton": "try:\n    import nothing_like_this\nexcept ImportError:\n    topk = norm = None\n"},
        "on sm90 norm: triton cannot be had: engine.triton:topk is None, and ",
    ),
    "the name of an implementation is mistyped": (
        {"ops": changed('return "native" if', 'return "natve" if')},
        "on cpu topk: natve is not in ops; the nearest is native, and 3 more",
    ),
    "another platform changed with the one that was opened": (
        {"ops": changed('if platform.is_cuda() and op == "topk"', 'if op == "topk" and platform.is_cuda() and False')},
        "on sm90 topk is triton, not cuda",
    ),
    "an op was lost from the table": (
        {"ops": changed('for op in ("topk", "norm")', 'for op in ("topk",)')},
        "on cpu norm is (nothing), not native, and 4 more",
    ),
    "an answer is kept from before it is known": (
        {
            "platform": changed("class Platform:", "IS_ROCM = is_rocm()\n\nclass Platform:", PLATFORM),
            "ops": changed("if platform.is_rocm():", "if platform.IS_ROCM:"),
        },
        "on gfx942 topk is native, not aiter, and 3 more",
    ),
    "a module cannot be imported on one platform": (
        {
            "ops": OPS
            + "\nif platform.is_rocm() and platform.arch() == 'gfx1100':\n    raise SystemExit('unsupported')\n"
        },
        "on gfx1100 decide raised SystemExit: unsupported (",
    ),
}


@pytest.mark.parametrize(("modules", "said"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found_and_named(engine: Engine, modules: dict[str, str], said: str) -> None:
    engine(**modules)
    with pytest.raises(LawBroken, match=rf"\Alaws: {re.escape(said)}"):
        judge()


def test_the_failure_shows_what_differs_and_names_what_does_not(engine: Engine) -> None:
    engine(**BUGS["the guard is loosened for the whole library"][0])
    ops = {**OPS_PLACES, "aiter": ["aiterlike:norm", "aiterlike:topk"]}
    with pytest.raises(LawBroken, match="on gfx1100 topk") as broken:
        judge(ops=ops)
    why = "aiter cannot be had: AttributeError: module 'aiterlike' has no attribute 'topk'"
    assert str(broken.value).splitlines() == [
        f"laws: on gfx1100 topk: {why}, and 2 more (assert_platform_choices)",
        f"  on gfx1100 topk: {why}",
        f"  on gfx1100 norm: {why}",
        "  platform  op    expected  chosen",
        "  gfx1100   topk  triton    aiter",
        "  as they should be: cpu, sm90, sm100, gfx942",
        "  asked on no platform: engine.platform:arch",
        "next: let the gate choose, op by op, what is there; if a difference is meant, change expected",
    ]


# torch: a package of that name stands in, since the real one takes seconds to import


@pytest.fixture
def torch_like(tmp_path: Path, engine: Engine) -> Engine:
    def write(gate: str) -> None:
        engine(gate=gate)
        for name, text in {
            "__init__": "from torch import cuda, version",
            "version": "cuda = hip = None",
            "cuda": "def is_available(): return False\n"
            "device_count = current_device = get_device_capability = get_device_name = is_available\n"
            "get_device_properties = is_available\n",
        }.items():
            (tmp_path / "torch").mkdir(exist_ok=True)
            (tmp_path / "torch" / f"{name}.py").write_text(text)

    return write


TARGETS = {name: torch_answers(name) for name in ("cpu", "sm80", "sm90", "sm120", "gfx90a", "gfx942", "gfx1100")}
BY_TARGET: dict[str, Any] = dict.fromkeys(TARGETS, "engine.triton:topk") | {
    "cpu": "engine.native:topk",
    "sm90": "engine.cuda:topk",
}
GATE = """
import torch

def choose():
    if not torch.cuda.is_available():
        return "engine.native:topk"
    if torch.version.hip is None and torch.cuda.get_device_capability() == (9, 0):
        return "engine.cuda:topk"
    return "engine.triton:topk"
"""


def test_a_gate_that_asks_torch_is_answered_by_target(torch_like: Engine) -> None:
    torch_like(GATE)
    assert assert_platform_choices("engine.gate:choose", TARGETS, BY_TARGET) == BY_TARGET


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("torch.version.hip is None and ", "", "on gfx90a the choice is engine.cuda:topk, not engine.triton:topk"),
        ("== (9, 0)", ">= (9, 0)", "on sm120 the choice is engine.cuda:topk, not engine.triton:topk"),
        ("if not torch.cuda.is_available()", "if False", "on cpu decide raised RuntimeError: Torch not compiled with"),
        (
            "torch.version.hip is None and ",
            "torch.version.cuda is None and ",
            "on sm90 the choice is engine.triton:topk",
        ),
        (
            "torch.version.hip is None and ",
            "torch.cuda.get_device_properties(0).gcnArchName != 'gfx90a' and ",
            "on sm80, sm90, sm120 decide raised AttributeError: ",
        ),
    ],
)
def test_bugs_of_gates_that_ask_torch_are_found(torch_like: Engine, old: str, new: str, said: str) -> None:
    torch_like(changed(old, new, GATE))
    with pytest.raises(LawBroken, match=rf"\Alaws: {re.escape(said)}"):
        assert_platform_choices("engine.gate:choose", TARGETS, BY_TARGET)


def test_torchs_answers_are_those_of_the_target() -> None:
    cpu, sm, gfx = torch_answers("cpu"), torch_answers("sm103"), torch_answers("gfx1151")
    assert set(cpu) == set(sm) == set(gfx)
    assert (cpu["torch.cuda:is_available"], sm["torch.cuda:is_available"]) == (False, True)
    assert sm["torch.cuda:get_device_capability"] == (10, 3)
    assert gfx["torch.cuda:get_device_capability"] == (11, 5)
    assert (sm["torch.version:cuda"], sm["torch.version:hip"]) == ("13.0", None)
    assert (gfx["torch.version:cuda"], gfx["torch.version:hip"]) == (None, "7.0")
    assert gfx["torch.cuda:get_device_properties"].gcnArchName == "gfx1151"
    assert torch_answers("gfx90a")["torch.cuda:get_device_properties"].gcnArchName == "gfx90a:sramecc+:xnack-"
    assert torch_answers("gfx942:xnack+")["torch.cuda:get_device_properties"].gcnArchName == "gfx942:xnack+"
    assert torch_answers("gfx942")["torch.cuda:get_device_properties"].warp_size == 64
    assert torch_answers("sm_90a")["torch.cuda:get_device_capability"] == (9, 0)


@pytest.mark.parametrize("target", ["", "sm", "sm9", "gfx", "gfx94", "rtx4090", "cuda"])
def test_a_target_that_nobody_makes_is_refused(target: str) -> None:
    with pytest.raises(LawsError, match=r"is no target \(argument of torch_answers\)\nnext: give \"cpu\""):
        torch_answers(target)


def test_the_real_torch_answers_and_tells_which_ops_are_registered() -> None:
    pytest.importorskip("torch")

    def decide() -> str:
        import torch

        assert torch.cuda.is_available()
        return "aten::gelu" if torch.version.hip else "aten::gelu_like_nothing"

    platforms = {"sm90": torch_answers("sm90"), "gfx1100": torch_answers("gfx1100")}
    expected = {"sm90": "aten::gelu_like_nothing", "gfx1100": "aten::gelu"}
    why = "gelu_like_nothing is not registered in torch.ops.aten"
    with pytest.raises(LawBroken, match=rf"on sm90 aten::gelu_like_nothing cannot be had: {why} \("):
        assert_platform_choices(decide, platforms, expected)


# predicates


@pytest.mark.parametrize(
    ("target", "problem", "fix"),
    [
        (
            "engine.platform:is_rcom",
            "there is no predicate engine.platform:is_rcom: engine.platform has no is_rcom",
            "did you mean is_rocm?",
        ),
        ("engine.platform:current.nme", "Platform has no nme", "did you mean name?"),
        ("engine.platform:zzz", "engine.platform has no zzz", "look what engine.platform has"),
        (
            "engine.plattform:is_rocm",
            "the module of the predicate engine.plattform:is_rocm cannot be imported: ModuleNotFoundError: No module",
            "check its name",
        ),
        (
            "engine.platform:WAVE.real",
            "the predicate engine.platform:WAVE.real cannot be replaced",
            "replace what it reads",
        ),
    ],
)
def test_a_predicate_that_is_not_there_is_an_error(engine: Engine, target: str, problem: str, fix: str) -> None:
    engine()
    with pytest.raises(LawsError, match=r"\(assert_platform_choices, on cpu\)") as refused:
        judge(platforms={name: {**answers, target: True} for name, answers in PLATFORMS.items()})
    assert not isinstance(refused.value, AssertionError)
    assert problem in refused.value.problem
    assert fix in refused.value.fix


def test_an_engine_that_swallows_all_errors_does_not_swallow_that_one(engine: Engine) -> None:
    engine(__init__="try:\n    from engine import platform\nexcept Exception:\n    pass\n")
    with pytest.raises(LawsError, match=r"engine\.platform has no is_rcom"):
        judge(platforms={name: {**answers, "engine.platform:is_rcom": True} for name, answers in PLATFORMS.items()})


def test_a_gate_that_asks_something_else_is_an_error_though_its_row_is_right(engine: Engine) -> None:
    engine(ops="import os\ndef choose():\n    return None if os.name else 'aiter'\n")
    with pytest.raises(LawsError, match=r"decide asked for none of engine.platform:is_rocm on any platform"):
        judge(platforms={"cpu": {"engine.platform:is_rocm": False}}, expected={"cpu": None})


@pytest.mark.parametrize(
    ("target", "answer", "expression"),
    [
        ("engine.platform:arch", "gfx1100", "platform.arch()"),
        ("engine.platform:arch", lambda: "gfx1100", "platform.arch()"),
        ("engine.platform:Platform.name", "gfx1100", "platform.current.name"),
        ("engine.platform:current.name", "gfx1100", "platform.current.name"),
        ("engine.platform:Platform.name", lambda: "gfx1100", "platform.current.name"),
        (
            "engine.platform:Platform.has_capability",
            lambda major, minor=0: f"gfx{major}00",
            "platform.current.has_capability(11)",
        ),
        (
            "engine.platform:current.has_capability",
            lambda major: f"gfx{major}00",
            "platform.current.has_capability(11)",
        ),
        ("engine.platform:Platform.count", 1100, "f'gfx{platform.current.count()}'"),
        ("engine.platform:WAVE", "gfx1100", "platform.WAVE"),
        ("engine.platform:Platform", SimpleNamespace, "platform.Platform(name='gfx1100').name"),
        ("engine.platform", {"arch": lambda: "gfx1100"}, "platform.arch()"),
        ("os:environ", {"ARCH": "gfx1100"}, "__import__('os').environ['ARCH']"),
    ],
)
def test_functions_methods_properties_values_classes_and_modules_can_be_replaced(
    engine: Engine, target: str, answer: Any, expression: str
) -> None:
    engine(ops=f"from engine import platform\ndef choose():\n    return {{'gfx1100': 1}}[{expression}]\n")
    assert judge(platforms={"gfx1100": {target: answer}}, expected={"gfx1100": 1}) == {"gfx1100": 1}


def test_predicates_imported_by_name_answer_too_also_through_a_reload(engine: Engine) -> None:
    text = "from engine.platform import arch\nimport importlib, engine.platform\n"
    text += "def choose():\n    importlib.reload(engine.platform)\n"
    text += "    return {('a', 'a'): 1}[arch(), engine.platform.arch()]\n"
    engine(ops=text, __init__="from engine.ops import choose")
    assert judge(platforms={"x": {"engine.platform:arch": "a"}}, expected={"x": 1}) == {"x": 1}


def test_parts_of_packages_are_there_or_absent_as_said(engine: Engine) -> None:
    text = """
import importlib.util

def choose():
    found = importlib.util.find_spec("aiterlike") is not None
    if not found:
        return 0
    import aiterlike.ops.triton
    from aiterlike.ops import __doc__
    return aiterlike.ops.triton.VERSION
"""
    engine(ops=text)
    platforms = {
        "with": {"aiterlike.ops.triton": {"VERSION": 3}, "aiterlike.other": []},
        "other": {"aiterlike.ops.triton": {"VERSION": 4}, "aiterlike.other": []},
        "without": {"aiterlike.ops.triton": None, "aiterlike.other": None},
    }
    assert judge(platforms=platforms, expected={"with": 3, "other": 4, "without": 0})


def test_a_stand_in_that_is_run_says_that_it_is_one(engine: Engine) -> None:
    engine(ops="import aiterlike\ndef choose():\n    return aiterlike.topk(3)\n")
    with pytest.raises(LawBroken, match=r"aiterlike\.topk is a stand-in: .*, none runs \(.*ops.py:3 in choose\)"):
        judge(platforms={"x": {"aiterlike": ["topk"]}}, expected={"x": None})


def test_no_device_of_this_machine_is_seen(engine: Engine) -> None:
    engine()

    def decide() -> list[str]:
        import os

        from engine import platform

        platform.arch()
        return sum(os.environ.get(f"{name}_VISIBLE_DEVICES") == "-1" for name in ("CUDA", "HIP", "ROCR"))

    assert judge(decide=decide, platforms={"x": {"engine.platform:arch": ""}}, expected={"x": 3})


# decide and its choice


class Backend(enum.Enum):
    TRITON = 1


def make() -> Callable[[], None]:
    def made() -> None: ...

    return made


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        (None, None),
        (True, True),
        (3, 3),
        ("engine.ops:x", "engine.ops:x"),
        (Backend.TRITON, "Backend.TRITON"),
        (json.dumps, "json:dumps"),
        (functools.partial(json.dumps, indent=2), "json:dumps"),
        (json.JSONEncoder, "json.encoder:JSONEncoder"),
        ({"a": {"b": json.loads}, 3: ("x", None)}, {"a": {"b": "json:loads"}, "3": ["x", None]}),
        (make(), f"{__name__}:make.<locals>.made"),
    ],
)
def test_a_choice_is_written_down_by_name(choice: Any, written: Any) -> None:
    assert plain(choice) == written


def test_a_choice_without_a_name_is_refused(engine: Engine) -> None:
    with pytest.raises(Refused, match="the choice is a object, which has no name to write down"):
        plain(object())
    engine(ops="def choose():\n    return object()\n")
    with pytest.raises(LawsError, match=r"the choice is a object, .*\(assert_platform_choices, on cpu\)"):
        judge()
    with pytest.raises(LawsError, match=r"the choice is a object, .*\(expected of assert_platform_choices\)"):
        judge(expected={**EXPECTED, "cpu": object()})


def test_a_name_without_a_place_is_refused(engine: Engine) -> None:
    engine()
    with pytest.raises(LawsError, match=r"nothing says where the choice 'native' is to be found") as refused:
        judge(ops=None)
    assert refused.value.fix.startswith("give ops={'native': ")


def test_functions_may_be_chosen_and_expected_as_they_are(engine: Engine) -> None:
    text = "from engine import platform, native, triton\ndef choose():\n"
    engine(ops=text + "    return triton.topk if platform.is_rocm() else native.topk\n")
    from engine import native, triton  # type: ignore[import-not-found]  # written above

    expected = {name: triton.topk if name.startswith("gfx") else native.topk for name in PLATFORMS}
    assert judge(expected=expected)["gfx942"] == "engine.triton:topk"
    for name in [name for name in sys.modules if name.partition(".")[0] == "engine"]:
        del sys.modules[name]


def test_decide_may_be_a_function_of_the_test(engine: Engine) -> None:
    engine()
    wanted = "norm"

    def decide() -> str:
        from engine import ops

        return ops.choice(wanted)

    assert judge(decide=decide, expected={name: row["norm"] for name, row in EXPECTED.items()})


def test_a_module_alone_is_only_imported(engine: Engine) -> None:
    engine(ops=AT_IMPORT)
    assert judge(decide="engine.ops", expected=dict.fromkeys(PLATFORMS, True))


def test_a_process_that_ends_is_a_broken_law_with_its_platform(engine: Engine) -> None:
    engine(ops="import os\nfrom engine import platform\ndef choose():\n    platform.arch() == 'sm90' and os._exit(3)\n")
    platforms = {name: PLATFORMS[name] for name in ("cpu", "sm90")}
    with pytest.raises(LawBroken, match=r"rank \d .*; rank 0 is "):
        judge(platforms=platforms, expected=dict.fromkeys(platforms))


# the table in a file


def test_a_table_that_is_not_there_is_written_and_fails_once(engine: Engine, tmp_path: Path) -> None:
    engine()
    path = tmp_path / "platforms.json"
    with pytest.raises(LawBroken, match=r"there was no table yet, .*platforms.json is new") as broken:
        judge(expected=None, snapshot=path)
    assert broken.value.evidence[0] == "cpu topk: native"
    assert json.loads(path.read_text()) == EXPECTED
    assert '\n  "gfx1100": {\n    "topk": "triton",\n' in path.read_text()
    assert judge(expected=None, snapshot=str(path)) == EXPECTED


def test_a_table_is_not_written_over_what_is_wrong(engine: Engine, tmp_path: Path) -> None:
    engine(triton="")
    path = tmp_path / "platforms.json"
    with pytest.raises(LawBroken, match="triton cannot be had"):
        judge(expected=None, snapshot=path)
    assert not path.exists()


def test_opening_a_platform_shows_its_row_alone_and_what_else_changed_besides(engine: Engine, tmp_path: Path) -> None:
    engine(ops=changed('if platform.is_cuda() and op == "topk"', 'if op == "topk" and platform.is_cuda() and False'))
    path = tmp_path / "platforms.json"
    path.write_text(json.dumps({**{name: EXPECTED[name] for name in list(EXPECTED)[:-1]}, "gfx90a": "x"}))
    with pytest.raises(LawBroken, match="on sm90 topk is triton") as broken:
        judge(expected=None, snapshot=path)
    assert broken.value.problem == "on sm90 topk is triton, not cuda, and 4 more"
    assert broken.value.evidence[:6] == (
        "platform  op    expected  chosen",
        "sm90      topk  cuda      triton",
        "sm100     topk  cuda      triton",
        "gfx90a          x         (not simulated)",
        "gfx1100   topk  (no row)  triton",
        "gfx1100   norm  (no row)  aiter",
    )
    assert broken.value.fix.endswith("change platforms.json by hand, or delete it to have it written anew")
    assert json.loads(path.read_text())["sm90"] == EXPECTED["sm90"]


@pytest.mark.parametrize(("text", "problem"), [("{", "cannot read"), ("[]", "has no table"), ("{}", "has no table")])
def test_a_file_without_a_table_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "platforms.json").write_text(text)
    with pytest.raises(LawsError, match=rf"{problem}.*\(snapshot\)\nnext: delete it"):
        judge(expected=None, snapshot=tmp_path / "platforms.json")


def test_a_table_that_cannot_be_written_is_an_error(engine: Engine, tmp_path: Path) -> None:
    engine()
    with pytest.raises(LawsError, match=r"cannot write .*No such file or directory \(snapshot\)"):
        judge(expected=None, snapshot=tmp_path / "nowhere" / "platforms.json")


def test_differences_are_by_platform_and_op() -> None:
    before = {"a": {"x": "1", "y": {"z": "2"}}, "b": "1", "c": True}
    after = {"a": {"x": "1", "y": {"z": "3"}, "w": None}, "b": {"x": "1"}, "d": "1"}
    assert differences(before, before) == []
    assert differences(before, after) == [
        ("a", "y.z", "2", "3"),
        ("a", "w", "(nothing)", "None"),
        ("b", "", "1", "(nothing)"),
        ("b", "x", "(nothing)", "1"),
        ("c", "", "True", "(not simulated)"),
        ("d", "", "(no row)", "1"),
    ]


# arguments


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"decide": "engine ops"}, "decide is 'engine ops'"),
        ({"decide": 3}, "decide is 3"),
        ({"platforms": {}}, "there is no platform"),
        ({"platforms": ["cpu"]}, "there is no platform"),
        ({"platforms": {"cpu": {}}}, "'cpu' has {}"),
        (
            {"platforms": {"cpu": {"engine.platform.is_rocm()": True}}},
            "'engine.platform.is_rocm()' of cpu is no predicate",
        ),
        ({"platforms": {"cpu": {"a:b": 1}, "sm90": {"a:c": 1}}}, "cpu and sm90 do not both have a:b"),
        ({"ops": ["aiter"]}, "ops is ['aiter']"),
        ({"ops": {"aiter": "aiterlike.topk"}}, "ops has 'aiterlike.topk' for aiter"),
        ({"ops": {"aiter": ["aiterlike:topk", 3]}}, "ops has 3 for aiter"),
        ({"expected": None}, "there is no table, or there are two"),
        ({"snapshot": "x.json"}, "there is no table, or there are two"),
        ({"expected": "native"}, "expected is 'native'"),
        ({"expected": dict.fromkeys(list(PLATFORMS)[:-1])}, "'gfx1100' is not in expected"),
        ({"expected": dict.fromkeys([*PLATFORMS, "gfx110"])}, "'gfx110' is not in platforms"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(LawsError, match=rf"\Alaws: {re.escape(problem)} \(") as refused:
        judge(**changes)
    assert refused.value.fix


def test_what_ranks_cannot_use_is_refused_by_them(engine: Engine) -> None:
    engine()
    with pytest.raises(ProcessesError, match="start is 'fork'"):
        judge(start="fork")


def test_an_answer_that_cannot_travel_is_refused_by_name() -> None:
    lock = SimpleNamespace(lock=__import__("threading").Lock())
    with pytest.raises(LawsError, match=r"the answer of a:b cannot be sent to a fresh process: TypeError"):
        judge(platforms={"cpu": {"a:b": lock}}, expected={"cpu": 1})
