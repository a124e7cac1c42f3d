"""The core without a runner: what steps do, when they are due, what is counted."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import testkit.cleanup
from testkit.cleanup import _now, _steps, cleanup_now
from testkit.cleanup._figures import Figures
from testkit.cleanup._schedule import SCOPES, Schedule, parse_scope
from testkit.errors import CleanupError

CALLS: list[str] = []


def first() -> None:
    CALLS.append("first")


def broken() -> None:
    CALLS.append("broken")
    raise ValueError("planted")


def skips() -> None:
    pytest.skip("planted")


def leaves() -> None:
    sys.exit(3)


def interrupted() -> None:
    raise KeyboardInterrupt


def generator() -> object:
    yield


async def coroutine() -> None:
    pass


holder = SimpleNamespace(last=lambda: CALLS.append("last"))
number = 3


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    CALLS.clear()


def steps(*names: str) -> tuple[_steps.Step, ...]:
    return _steps.parse([name if name in ("gc", "torch") else f"{__name__}:{name}" for name in names], "from a test")


def test_every_step_runs_in_order_though_others_fail() -> None:
    outcomes = _steps.run(steps("first", "broken", "holder.last"))
    assert CALLS == ["first", "broken", "last"]
    assert [outcome.error for outcome in outcomes] == ["", "ValueError: planted", ""]
    assert str(_steps.problem(outcomes)) == (
        f"cleanup: step {__name__}:broken raised ValueError: planted (from a test)\n"
        "next: repair the step, or take it out of cleanup_steps"
    )


def test_the_evidence_shows_where_a_step_failed_and_nothing_of_ours() -> None:
    text = _steps.evidence(_steps.run(steps("first", "broken")), "after x")
    assert text.startswith(f"  1 of 2 steps failed after x\n\n{__name__}:broken:\nTraceback")
    assert 'raise ValueError("planted")' in text
    assert "testkit/cleanup" not in text


@pytest.mark.parametrize(("name", "error"), [("skips", "Skipped: planted"), ("leaves", "SystemExit: 3")])
def test_a_step_that_leaves_by_another_way_has_failed(name: str, error: str) -> None:
    outcomes = _steps.run(steps(name, "first"))
    assert outcomes[0].error == error
    assert CALLS == ["first"]


def test_an_interrupt_in_a_step_is_passed_on_at_once() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        _steps.run(steps("interrupted", "first"))
    assert CALLS == []


def test_an_interrupted_clean_up_is_counted_with_the_step_that_it_ended_in() -> None:
    figures = Figures()
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        figures.clean("module", steps("first", "interrupted", "holder.last"))
    figures.clean("module", steps("first"))
    assert CALLS == ["first", "first"]
    sums = Figures()
    sums.merge(figures.plain())
    for either in (figures, sums):
        line, interrupted = either.lines()
        assert line.startswith("cleanup: 2 clean-ups (module) in 0.0")
        assert list(either.seconds) == [f"{__name__}:first", f"{__name__}:interrupted"]
        assert interrupted == f"cleanup: step {__name__}:interrupted was interrupted in 1 of 2 clean-ups"


def test_cleanup_now_is_counted_when_interrupted() -> None:
    figures = Figures()
    _now.begin(steps("interrupted", "first"), figures)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            cleanup_now()
    finally:
        _now.end()
    assert figures.runs == {"cleanup_now": 1}
    assert figures.interrupted == {f"{__name__}:interrupted": 1}


def test_no_failures_are_no_problem() -> None:
    assert _steps.problem(_steps.run(steps("first"))) is None


@pytest.mark.parametrize(
    ("line", "problem", "fix"),
    [
        ("trch", "unknown step 'trch'", "did you mean torch?"),
        ("everything", "unknown step 'everything'", "write gc, torch or package.module:function"),
        (":f", "unknown step ':f'", "write gc, torch"),
        ("no_such_module:f", "step 'no_such_module:f' cannot be imported: ModuleNotFoundError", "pythonpath"),
        (f"{__name__}:frist", f"does not exist in {__name__}", f"did you mean {__name__}:first?"),
        (f"{__name__}:zzzzzz", f"does not exist in {__name__}", "name a function of"),
        (f"{__name__}:number", "is int, not a function", "name a function"),
        (f"{__name__}:generator", "calling it runs nothing", "name an ordinary function"),
        (f"{__name__}:coroutine", "calling it runs nothing", "name an ordinary function"),
    ],
)
def test_a_step_that_could_not_run_is_refused_with_its_source(line: str, problem: str, fix: str) -> None:
    with pytest.raises(CleanupError, match=r"^cleanup: ") as caught:
        _steps.parse(["gc", line], "from ini cleanup_steps")
    headline, following = str(caught.value).splitlines()
    assert problem in headline
    assert headline.endswith("(from ini cleanup_steps)")
    assert following.startswith("next: ")
    assert fix in following


def test_gc_frees_what_refers_to_itself() -> None:
    class Engine:
        pass

    engine = Engine()
    engine.me = engine  # type: ignore[attr-defined]
    seen = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert seen() is not None
        _steps.run(steps("gc"))
        assert seen() is None
    finally:
        gc.enable()


class Device:
    """An accelerator module of torch."""

    def __init__(self, started: bool) -> None:
        self.started = started
        self.emptied = 0

    def is_initialized(self) -> bool:
        return self.started

    def is_available(self) -> bool:
        return self.started

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.mark.parametrize("started", [True, False])
def test_torch_empties_the_caches_of_started_devices_only(monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    torch = ModuleType("torch")
    devices = {name: Device(started) for name in ("cuda", "xpu", "mps")}
    vars(torch).update(devices, backends=SimpleNamespace(mps=devices["mps"]))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert _steps.problem(_steps.run(steps("torch"))) is None
    assert [device.emptied for device in devices.values()] == [started] * 3


def test_torch_does_nothing_where_nobody_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert _steps.problem(_steps.run(steps("torch"))) is None
    assert "torch" not in sys.modules


def test_torch_accepts_the_real_module_and_starts_no_device() -> None:
    torch = pytest.importorskip("torch")
    before = torch.cuda.is_initialized()
    assert _steps.problem(_steps.run(steps("torch"))) is None
    assert torch.cuda.is_initialized() is before


@pytest.mark.parametrize(("text", "fix"), [("modul", "did you mean module?"), ("x", "use function, module or session")])
def test_an_unknown_scope_is_refused(text: str, fix: str) -> None:
    with pytest.raises(CleanupError, match=rf"^cleanup: unknown scope '{text}' \(from --cleanup-scope\)") as caught:
        parse_scope(text, "from --cleanup-scope")
    assert caught.value.fix == fix
    assert [parse_scope(scope, "") for scope in SCOPES] == list(SCOPES)


def due(schedule: Schedule, *tests: str) -> list[str]:
    """The clean-ups after tests such as "a" (ran in module a), "a marked", "b skipped"."""
    answers = []
    for number, test in enumerate(tests):
        following = tests[number + 1][0] if number + 1 < len(tests) else ""
        answer = schedule.after_test(
            test[0],
            ran="skipped" not in test,
            marked="marked" in test,
            leaving=following != test[0],
            last=not following,
        )
        schedule.cleaned(answer)
        answers.append(answer)
    return answers


F, M, S, _ = "function", "module", "session", ""


@pytest.mark.parametrize(
    ("scope", "tests", "expected"),
    [
        (F, ["a", "a", "b"], [F, F, F]),
        (F, ["a marked", "a marked", "b"], [_, M, F]),
        (F, ["a", "a marked", "a skipped", "b marked"], [F, _, M, M]),
        (F, ["a marked", "a", "a skipped", "b skipped"], [_, F, _, _]),
        (F, ["a marked skipped", "b"], [_, F]),
        (M, ["a", "a", "b", "b"], [_, M, _, M]),
        (M, ["a marked", "a", "b skipped"], [_, M, _]),
        (M, ["a", "b", "a", "b"], [M, M, M, M]),
        (M, ["a", "a skipped"], [_, M]),
        (S, ["a", "b", "c skipped"], [_, _, S]),
        (S, ["a skipped"], [_]),
        (None, ["a", "a", "b"], [_, _, _]),
    ],
)
def test_a_clean_up_is_due(scope: str | None, tests: list[str], expected: list[str]) -> None:
    schedule = Schedule(scope)
    assert due(schedule, *tests) == expected
    assert schedule.at_end() == ""


@pytest.mark.parametrize(
    ("scope", "expected"), [(F, [F, F, _, M, F]), (M, [_, M, _, M, M]), (S, [_, _, _, M, S]), (None, [_, _, _, M, _])]
)
def test_a_module_that_asked_is_cleaned_after_at_its_end_whatever_the_scope(
    scope: str | None, expected: list[str]
) -> None:
    schedule = Schedule(scope)
    schedule.wanted.add("b")
    assert due(schedule, "a", "a", "b", "b", "c") == expected


@pytest.mark.parametrize(("scope", "expected"), [(F, M), (M, M), (S, S), (None, _)])
def test_an_interrupted_test_is_cleaned_after_at_the_end_once(scope: str | None, expected: str) -> None:
    schedule = Schedule(scope)
    schedule.began("a")
    assert schedule.at_end() == expected
    schedule.cleaned(expected)
    assert schedule.at_end() == ""


@pytest.mark.parametrize(("scope", "last", "due"), [(F, False, F), (M, False, M), (M, True, M), (S, True, S)])
def test_a_clean_up_that_did_not_end_is_owed_still(scope: str, last: bool, due: str) -> None:
    schedule = Schedule(scope)
    assert schedule.after_test("a", ran=True, marked=False, leaving=True, last=last) == due
    assert schedule.at_end() == (S if scope == S else M)


def test_a_module_that_asked_leaves_the_session_its_own_clean_up() -> None:
    schedule = Schedule(S)
    schedule.wanted.add("b")
    schedule.began("a")
    assert schedule.after_test("b", ran=True, marked=False, leaving=True, last=False) == M
    schedule.cleaned(M)
    assert schedule.at_end() == S


def outcome(name: str, seconds: float, error: str = "") -> _steps.Outcome:
    return _steps.Outcome(_steps.Step(name, first), seconds, error)


def test_figures_of_several_processes_add_up() -> None:
    one, two, both = Figures(), Figures(), Figures()
    one.add("module", [outcome("gc", 0.25), outcome("m:f", 0.5, "ValueError: planted")])
    two.add("module", [outcome("gc", 0.5), outcome("m:f", 0.0)])
    two.add("cleanup_now", [outcome("gc", 0.25)])
    both.merge(one.plain())
    both.merge(two.plain())
    assert one.lines()[0] == "cleanup: 1 clean-up (module) in 0.75 s: gc 0.25 s, m:f 0.50 s"
    assert both.lines() == [
        "cleanup: 3 clean-ups (2 module, 1 cleanup_now) in 1.50 s: gc 1.00 s, m:f 0.50 s",
        "cleanup: step m:f failed in 1 of 3 clean-ups",
    ]
    assert Figures().lines() == []


def test_cleanup_now_runs_and_counts_the_steps_of_the_innermost_run() -> None:
    outer, inner = Figures(), Figures()
    _now.begin(steps("broken"), outer)
    _now.begin(steps("first"), inner)
    try:
        cleanup_now()
        assert CALLS == ["first"]
        assert inner.runs == {"cleanup_now": 1}
    finally:
        _now.end()
    try:
        with pytest.raises(CleanupError, match=r"^cleanup: step .*:broken raised ValueError: planted \(from a test\)"):
            cleanup_now()
        assert outer.failed == {f"{__name__}:broken": 1}
    finally:
        _now.end()


def test_the_face_shows_its_names_and_imports_nothing_heavy() -> None:
    assert dir(testkit.cleanup) == ["cleanup_now", "module_cleanup"] == sorted(testkit.cleanup.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'cleanup_later'"):
        testkit.cleanup.cleanup_later  # noqa: B018  # the lookup is what is tested
    code = (
        "import sys, testkit.cleanup as c; c.cleanup_now(); "
        "print([m for m in ('pytest', '_pytest', 'torch', 'numpy', 'xdist') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def takes(what: object) -> None:
    CALLS.append(str(what))


class Builds:
    pass


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gc, torch", "unknown step 'gc, torch' .*\nnext: write one step a line"),
        ("gc torch", "unknown step 'gc torch' .*\nnext: write one step a line"),
        (
            f"{__name__}:takes",
            "step '.*:takes' cannot be called without arguments: missing a required argument: 'what'",
        ),
        (f"{__name__}:Builds", "step '.*:Builds' is a class, so calling it only builds an object"),
    ],
)
def test_a_step_that_could_do_nothing_is_refused_at_the_start(line: str, message: str) -> None:
    with pytest.raises(CleanupError, match=f"^cleanup: {message}"):
        _steps.parse([line], "from ini cleanup_steps")


def test_steps_may_come_as_one_text() -> None:
    assert [step.name for step in _steps.parse("gc\n torch\n", "from ini cleanup_steps")] == ["gc", "torch"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise SystemExit", "SystemExit"),
        ("import pytest; pytest.skip('planted', allow_module_level=True)", "Skipped: planted"),
        ("import pytest; pytest.importorskip('not_there')", "Skipped: could not import 'not_there'"),
        ("import pytest; pytest.fail('planted')", "Failed: planted"),
        ("raise RuntimeError('planted')", "RuntimeError: planted"),
        ("def __getattr__(name): import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("def __getattr__(name): raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_leaves_while_it_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "kit_leaves.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kit_leaves", raising=False)
    with pytest.raises(CleanupError, match=r"^cleanup: step 'kit_leaves:f' cannot be imported: ") as caught:
        _steps.parse(["kit_leaves:f"], "from ini cleanup_steps")
    assert f"cannot be imported: {reason}" in caught.value.headline
    assert caught.value.fix
    sys.modules.pop("kit_leaves", None)


@pytest.mark.parametrize("source", ["raise KeyboardInterrupt", "def __getattr__(name): raise KeyboardInterrupt"])
def test_ctrl_c_while_a_step_is_imported_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "kit_interrupts.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kit_interrupts", raising=False)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        _steps.parse(["kit_interrupts:f"], "from ini cleanup_steps")
    sys.modules.pop("kit_interrupts", None)
