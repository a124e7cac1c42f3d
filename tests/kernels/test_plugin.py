"""``--kernels-drift`` in inner runs: what it judges, when it says that it cannot, and what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

MODEL = """
    class Backend:
        def __init__(self, heads, block, window):
            self.heads = heads
            self.block = block
            self.window = window

        def run(self):
            return self.heads + getattr(self, "window", 0)

        def pages(self):
            return self.block
"""

HEALTHY = """
    from model import Backend
    from testkit.kernels import bare

    def test_run():
        assert bare(Backend, heads=1, window=2).run() == 3
"""

UNREAD = """
    from model import Backend
    from testkit.kernels import bare

    def test_run():
        assert bare(Backend, heads=1, window=2, block=3).run() == 3
"""

DEFAULTED = """
    from model import Backend
    from testkit.kernels import bare

    def test_run():
        assert bare(Backend, heads=1).run() == 1
"""

SHARED = """
    import pytest
    from model import Backend
    from testkit.kernels import bare

    @pytest.fixture{scope}
    def backend():
        return bare(Backend, heads=1, window=2, block=3)

    def test_run(backend):
        assert backend.run() == 3

    def test_pages(backend):
        assert backend.pages() == 3
"""


def ini(pytester: pytest.Pytester, *lines: str) -> None:
    pytester.makeini("\n".join(["[pytest]", "pythonpath = .", *lines]))


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest in its own process with our plugin and those that are named."""
    pytester.makepyfile(model=MODEL)
    ini(pytester)

    def run(*args: str, plugins: tuple[str, ...] = ("testkit.kernels.plugin",)) -> pytest.RunResult:
        named = [part for plugin in plugins for part in ("-p", plugin)]
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *named, *args, timeout=120)

    return run


def test_nobody_asked_and_nothing_is_judged(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeconftest(
        """
        def pytest_unconfigure(config):
            import sys
            print("judge:", config.pluginmanager.has_plugin("testkit.kernels.judge"))
            print("heavy:", [name for name in ("torch", "numpy") if name in sys.modules])
        """
    )
    pytester.makepyfile(test_it=UNREAD)
    result = run()
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*kernels:*")
    result.stdout.fnmatch_lines(["judge: False", "heavy: []"])


@pytest.mark.parametrize("way", ["option", "ini"])
@pytest.mark.parametrize(("action", "code"), [("warn", 0), ("fail", 1)])
def test_what_nothing_read_is_told_and_fails_where_asked(
    pytester: pytest.Pytester, run: Run, way: str, action: str, code: int
) -> None:
    pytester.makepyfile(test_it=UNREAD)
    if way == "ini":
        ini(pytester, f"kernels_drift = {action}")
    result = run(*([f"--kernels-drift={action}"] if way == "option" else []))
    result.assert_outcomes(passed=1)
    assert result.ret == code
    source = "from --kernels-drift" if way == "option" else "from ini kernels_drift"
    result.stdout.fnmatch_lines(
        [
            "*= stub drift =*",
            "Backend: block is given and nothing read it: test_it.py:5: assert bare(Backend, heads=1, *",
            f"kernels: 1 drift in 1 place that make stubs ({source})",
        ]
    )


def test_a_default_that_hid_a_field_is_told_with_the_line_that_took_it(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it=DEFAULTED)
    result = run("--kernels-drift=fail")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "Backend: window is not given, and who asked went on with a default: model.py:8: return self.heads*; "
            "a real one: model.py:5: self.window = window"
        ]
    )


def test_a_healthy_run_passes_and_says_what_was_judged(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it=HEALTHY)
    result = run("--kernels-drift=fail")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["kernels: 0 drifts in 1 place that make stubs (from --kernels-drift)"])


@pytest.mark.parametrize("scope", ["", '(scope="module")'])
def test_what_another_test_reads_is_read(pytester: pytest.Pytester, run: Run, scope: str) -> None:
    """A helper makes one stub for tests that each read a part."""
    pytester.makepyfile(test_it=SHARED.format(scope=scope))
    assert run("--kernels-drift=fail").ret == 0
    result = run("--kernels-drift=fail", "-k", "run")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["Backend: block is given and nothing read it: test_it.py:7*"])


def test_a_stub_inside_an_unread_one_is_not_told_of(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        test_it="""
        from model import Backend
        from testkit.kernels import bare

        def test_run():
            inner = bare(Backend, heads=1)
            assert bare(Backend, heads=1, window=2, block=inner).run() == 3
        """
    )
    result = run("--kernels-drift=warn")
    result.stdout.fnmatch_lines(["Backend: block is given*", "kernels: 1 drift in 2 places*"])


def test_after_a_failure_what_nothing_reads_is_not_judged(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it=UNREAD.replace("== 3", "== 4"))
    result = run("--kernels-drift=fail")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["kernels: 0 drifts*; what nothing reads is not judged, since tests failed"])


def test_the_error_of_a_failed_test_is_not_told_twice(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        test_it="""
        from model import Backend
        from testkit.kernels import bare

        def test_run():
            assert bare(Backend, window=1).run() == 3
        """
    )
    result = run("--kernels-drift=fail")
    result.stdout.fnmatch_lines(
        ["E * the stub of Backend has no heads (read in run, model.py:8)", "kernels: 0 drifts*"]
    )


@pytest.mark.parametrize("end", ["pytest.skip('no device')", "pytest.xfail('known')"])
def test_a_test_that_ended_early_may_have_left_attributes_unread(pytester: pytest.Pytester, run: Run, end: str) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest
        from model import Backend
        from testkit.kernels import bare

        def test_run():
            bare(Backend, heads=1)
            {end}

        def test_passes():
            pass
        """
    )
    assert run("--kernels-drift=fail").ret == 0


def test_a_run_without_stubs_says_so(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")
    result = run("--kernels-drift=fail")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["kernels: no stub was made, so none was judged"])


def test_stubs_of_the_module_are_judged_at_the_end(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(
        test_it="""
        from model import Backend
        from testkit.kernels import bare

        STUB = bare(Backend, heads=1, window=2, block=3)

        def test_run():
            assert STUB.run() == 3
        """
    )
    result = run("--kernels-drift=fail")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["Backend: block is given and nothing read it: test_it.py:4*"])


def test_workers_bring_their_reads_together(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it=SHARED.format(scope=""))
    plugins = ("testkit.kernels.plugin", "xdist.plugin")
    result = run("--kernels-drift=fail", "-n2", plugins=plugins)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["kernels: 0 drifts in 1 place that make stubs (from --kernels-drift)"])
    pytester.makepyfile(test_it=DEFAULTED, test_other=UNREAD)
    result = run("--kernels-drift=fail", "-n2", plugins=plugins)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random(
        ["Backend: window is not given*", "Backend: block is given*", "kernels: 2 drifts in 2 places*"]
    )


def test_a_worker_that_crashed_leaves_the_unread_unjudged(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it=UNREAD + "\n        import os\n        os._exit(3)\n")
    result = run("--kernels-drift=fail", "-n1", "--max-worker-restart=0", plugins=("testkit.kernels.plugin", "xdist"))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["kernels: *; gw0 did not report, so what nothing reads is not judged"])


@pytest.mark.parametrize("way", ["option", "ini"])
def test_an_unknown_action_is_a_usage_error(pytester: pytest.Pytester, run: Run, way: str) -> None:
    if way == "ini":
        ini(pytester, "kernels_drift = loud")
    result = run(*(["--kernels-drift=loud"] if way == "option" else []))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    source = "from --kernels-drift" if way == "option" else "from ini kernels_drift"
    result.stderr.fnmatch_lines(
        [f"ERROR: kernels: 'loud' is not known ({source})", "next: give one of off, warn, fail"]
    )


def test_the_action_is_explained(run: Run) -> None:
    run("--help").stdout.fnmatch_lines(["*--kernels-drift=ACTION*", "*what follows when stubs*"])
