"""The guarantee: nothing of a module is alive when its clean-up ran, however the module ended."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest

from testkit.cleanup import _release

Run = Callable[..., pytest.RunResult]

INI = """
    [pytest]
    pythonpath = .
    cleanup_scope = module
    cleanup_steps =
        gc
        witness:look
"""

# How a module may end: source, and how many objects it builds.
ENDINGS = {
    "a function with a module fixture": (
        """
        def test_it(engine):
            assert engine
        """,
        1,
    ),
    "a function with a local object": (
        """
        from witness import build

        def test_it():
            engine = build()
        """,
        1,
    ),
    "a class whose tests set attributes": (
        """
        from witness import build

        class TestIt:
            @classmethod
            def setup_class(cls):
                cls.shared = build()

            @classmethod
            def teardown_class(cls):
                del cls.shared

            def setup_method(self):
                self.engine = build()

            def test_one(self):
                assert self.engine

            def test_two(self):
                assert self.engine
        """,
        3,
    ),
    "a unittest case": (
        """
        import unittest
        from witness import build

        class TestIt(unittest.TestCase):
            def setUp(self):
                self.engine = build()

            def test_one(self):
                assert self.engine

            def test_two(self):
                self.fail("planted")
        """,
        2,
    ),
    "a unittest case whose set-up and tear-down fail": (
        """
        import unittest
        from witness import build

        class TestOne(unittest.TestCase):
            def setUp(self):
                self.engine = build()
                raise RuntimeError("planted")

            def test_one(self):
                pass

        class TestTwo(unittest.TestCase):
            def tearDown(self):
                self.engine.nope

            def test_two(self):
                self.engine = build()
                self.addCleanup(lambda: self.engine.nope)
                self.addCleanup(lambda: self.engine.nope)
                self.fail("planted")
        """,
        2,
    ),
    "a failing set-up of a function fixture": (
        """
        import pytest
        from witness import build

        @pytest.fixture
        def broken(engine):
            mine = build()
            raise RuntimeError("planted", mine)

        def test_it(broken):
            pass
        """,
        2,
    ),
    "a failing set-up of a module fixture": (
        """
        import pytest
        from witness import build

        @pytest.fixture(scope="module")
        def broken(engine):
            mine = build()
            raise RuntimeError("planted", mine)

        def test_one(broken):
            pass

        def test_two(broken):
            pass
        """,
        2,
    ),
    "a failing test": (
        """
        from witness import build

        def helper(engine):
            mine = build()
            assert mine is engine

        def test_it(engine):
            helper(engine)
        """,
        2,
    ),
    "an error that refers to the object": (
        """
        def test_it(engine):
            try:
                raise LookupError(engine)
            except LookupError:
                engine.nope
        """,
        1,
    ),
    "an error with a cause": (
        """
        class Wrapped(Exception):
            def __init__(self, engine):
                self.engine = engine

        def test_it(engine):
            try:
                engine.nope
            except AttributeError as error:
                raise Wrapped(engine) from error
        """,
        1,
    ),
    "a failing doctest": (
        """
        def documented():
            '''
            >>> from witness import build
            >>> engine = build()
            >>> engine.nope
            1
            '''
        """,
        1,
    ),
    "a failing tear-down of a function fixture": (
        """
        import pytest
        from witness import build

        @pytest.fixture
        def broken(engine):
            mine = build()
            yield mine
            mine.nope

        def test_it(broken):
            assert broken
        """,
        2,
    ),
    "a failing tear-down of a module fixture": (
        """
        import pytest
        from witness import build

        @pytest.fixture(scope="module")
        def broken(engine):
            mine = build()
            yield mine
            mine.nope

        def test_it(broken):
            assert not broken
        """,
        2,
    ),
    "an expected failure": (
        """
        import pytest

        @pytest.mark.xfail
        def test_it(engine):
            assert not engine
        """,
        1,
    ),
    "a skip in the body": (
        """
        import pytest
        from witness import build

        def test_it(engine):
            mine = build()
            pytest.skip("planted")
        """,
        2,
    ),
    "a log record that refers to the object": (
        """
        import logging
        import pytest

        @pytest.fixture(scope="module")
        def logged(engine):
            yield
            logging.getLogger().warning("closing %s", engine)

        def test_it(engine, logged, caplog):
            logging.getLogger().warning("using %s", engine)
        """,
        1,
    ),
    "warnings and a raises block": (
        """
        import warnings
        import pytest

        def test_it(engine):
            warnings.warn(f"planted {engine}")
            with pytest.raises(AttributeError, match="nope") as caught:
                engine.nope
        """,
        1,
    ),
    "a fixture on top of a session fixture": (
        """
        import pytest
        from witness import build

        @pytest.fixture(scope="session")
        def machine():
            return "machine"

        @pytest.fixture(scope="module", params=[1, 2])
        def mine(machine, request):
            return build()

        def test_it(mine):
            assert mine
        """,
        2,
    ),
}


FAILURES = [name for name in ENDINGS if "fail" in name or "error" in name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_alive_when_a_module_ended_with(
    pytester: pytest.Pytester, run: Run, witness: None, ending: str
) -> None:
    assert seen_after(pytester, run, ending) == nothing_alive(ending)


@pytest.mark.parametrize("ending", FAILURES)
def test_nothing_is_alive_after_the_locals_were_shown_of(
    pytester: pytest.Pytester, run: Run, witness: None, ending: str
) -> None:
    assert seen_after(pytester, run, ending, "--showlocals") == nothing_alive(ending)


def seen_after(pytester: pytest.Pytester, run: Run, ending: str, *args: str) -> list[str]:
    pytester.makeini(INI)
    pytester.makepyfile(test_a=ENDINGS[ending][0], test_b="def test_next_module(): pass")
    result = run("--doctest-modules", *args)
    result.stdout.fnmatch_lines(["cleanup: 2 clean-ups (module) in *"])
    return [line for line in result.outlines if line.startswith(("clean-up: ", "next set-up: "))]


def nothing_alive(ending: str) -> list[str]:
    count = f"{ENDINGS[ending][1]} built, 0 alive"
    return [f"clean-up: {count}", f"next set-up: {count}", f"clean-up: {count}"]


@pytest.mark.parametrize("args", [("-x",), ("--maxfail=1",)], ids=" ".join)
def test_nothing_is_alive_at_the_end_of_a_run_cut_short_by(
    pytester: pytest.Pytester, run: Run, witness: None, args: tuple[str, ...]
) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        test_a="""
        def test_it(engine):
            engine.nope

        def test_never():
            pass
        """
    )
    result = run(*args)
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in *", "clean-up: 1 built, 0 alive"])
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("where", ["set-up", "call", "tear-down"])
def test_ctrl_c_still_cleans_once_after(pytester: pytest.Pytester, run: Run, witness: None, where: str) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        test_a=f"""
        import pytest
        from witness import build

        @pytest.fixture
        def part(engine):
            mine = build()
            if {where!r} == "set-up":
                raise KeyboardInterrupt
            yield mine
            if {where!r} == "tear-down":
                raise KeyboardInterrupt

        class TestIt:
            def test_it(self, part):
                self.mine = build()
                if {where!r} == "call":
                    raise KeyboardInterrupt
        """,
        test_b="def test_never(): pass",
    )
    result = run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    built = 2 if where == "set-up" else 3
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (module) in *", f"clean-up: {built} built, 0 alive"])


def test_a_rerun_test_is_cleaned_after_once_and_leaves_nothing(
    pytester: pytest.Pytester, run: Run, witness: None
) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        test_a="""
        from witness import build

        TIMES = []

        class TestIt:
            def test_it(self, engine):
                self.mine = build()
                TIMES.append(1)
                assert len(TIMES) == 3
        """,
        test_b="def test_next_module(): pass",
    )
    result = run("--reruns=2", plugins=("testkit.cleanup.plugin", "pytest_rerunfailures"))
    assert "2 passed, 2 rerun" in result.stdout.str()
    result.stdout.fnmatch_lines(
        ["cleanup: 2 clean-ups (module) in *", "clean-up: * built, 0 alive", "next set-up: * built, 0 alive"]
    )


def test_function_scope_releases_what_the_test_held_and_keeps_the_module_fixture(
    pytester: pytest.Pytester, run: Run, witness: None
) -> None:
    pytester.makeini(INI.replace("cleanup_scope = module", ""))
    pytester.makepyfile(
        test_a="""
        from witness import build

        def test_one(engine):
            mine = build()
            assert not mine

        def test_two(engine):
            mine = build()
        """
    )
    result = run()
    result.stdout.fnmatch_lines(["clean-up: 2 built, 1 alive", "clean-up: 3 built, 0 alive"])


def test_session_scope_cleans_after_the_last_session_fixture(
    pytester: pytest.Pytester, run: Run, witness: None
) -> None:
    pytester.makeini(INI.replace("= module", "= session"))
    source = """
        import pytest
        from witness import build

        @pytest.fixture(scope="session")
        def kept():
            yield build()

        def test_it(kept, engine):
            pass
        """
    pytester.makepyfile(test_a=source, test_b=source)
    result = run()
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up (session) in *", "clean-up: 4 built, 0 alive"])
    result.stdout.no_fnmatch_line("clean-up: *, [1-9] alive")


def test_the_engine_of_a_module_fixture_is_dead_at_the_module_end(
    pytester: pytest.Pytester, run: Run, witness: None
) -> None:
    """As asked for in https://github.com/vllm-project/vllm/pull/49911: no clean-up waits for an engine that lives."""
    pytester.makeini(INI)
    pytester.makepyfile(
        test_a="""
        import gc
        import pytest
        import witness

        @pytest.fixture(scope="module", autouse=True)
        def earliest():
            yield  # torn down last, and still too early: the last test's arguments hold the engine
            gc.collect()
            witness.LOG.append(f"finalizer: {witness.alive()} alive")

        def test_one(engine):
            assert engine

        def test_two(engine):
            assert engine
        """,
        test_b="def test_next_module(): pass",
    )
    result = run()
    result.stdout.fnmatch_lines(
        ["finalizer: 1 alive", "clean-up: 1 built, 0 alive", "next set-up: 1 built, 0 alive"], consecutive=True
    )


def test_the_last_failure_is_there_again_for_a_debugger(pytester: pytest.Pytester, run: Run, witness: None) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        test_a="""
        def helper(engine):
            return engine.nope

        def test_it(engine):
            helper(engine)
        """,
        main="""
        import sys, traceback
        import pytest

        pytest.main(["-p", "testkit.cleanup.plugin", "test_a.py"])
        import witness

        for frame in traceback.extract_tb(sys.last_traceback)[-2:]:
            print("frame", frame.name, frame.line)
        print("type", sys.last_type.__name__, "value", sys.last_value)
        print("alive", witness.alive())
        """,
    )
    result = pytester.runpython("main.py")
    result.stdout.fnmatch_lines(
        [
            "clean-up: 1 built, 0 alive",
            "frame test_it helper(engine)",
            "frame helper return engine.nope",
            "type AttributeError value 'Engine' object has no attribute 'nope'",
            "alive 0",
        ]
    )


def test_no_failure_comes_back_once_a_later_test_began(pytester: pytest.Pytester, run: Run, witness: None) -> None:
    pytester.makeini(INI)
    pytester.makepyfile(
        test_a="def test_it(): assert 0",
        test_b="def test_it(): pass",
        main="""
        import sys
        import pytest

        pytest.main(["-p", "testkit.cleanup.plugin", "test_a.py", "test_b.py"])
        print("left:", [name for name in vars(sys) if name.startswith("last_")])
        """,
    )
    pytester.runpython("main.py").stdout.fnmatch_lines(["cleanup: 2 clean-ups*", "*1 failed, 1 passed*", "left: []"])


# What is not over is left alone

SUSPENDED = {
    "a generator": """
        @pytest.fixture(scope="session")
        def server():
            try:
                fails()
            except RuntimeError as caught:
                error = caught
            yield error
            print("torn down")
        """,
    "a generator inside a generator": """
        def parts():
            try:
                fails()
            except RuntimeError as caught:
                error = caught
            yield error
            print("torn down")

        @pytest.fixture(scope="session")
        def server():
            yield from parts()
        """,
    "a generator that went on where the error reached it": """
        def retries():
            error = None
            while True:
                try:
                    yield error
                except RuntimeError as caught:
                    error = caught
                except GeneratorExit:
                    print("torn down")
                    return

        @pytest.fixture(scope="session")
        def server():
            machine = retries()
            next(machine)
            yield machine.throw(RuntimeError("planted"))
            machine.close()
        """,
    "a coroutine": """
        class Pause:
            def __init__(self, value):
                self.value = value

            def __await__(self):
                yield self.value

        async def serve():
            try:
                fails()
            except RuntimeError as caught:
                error = caught
            await Pause(error)
            print("torn down")

        @pytest.fixture(scope="session")
        def server():
            running = serve()
            yield running.send(None)
            with pytest.raises(StopIteration):
                running.send(None)
        """,
    "an async generator": """
        async def serve():
            try:
                fails()
            except RuntimeError as caught:
                error = caught
            yield error
            print("torn down")

        @pytest.fixture(scope="session")
        def server():
            running = serve()
            with pytest.raises(StopIteration) as first:
                running.__anext__().send(None)
            yield first.value.value
            with pytest.raises(StopAsyncIteration):
                running.__anext__().send(None)
        """,
}


@pytest.mark.parametrize("scope", ["function", "module"])
@pytest.mark.parametrize("kind", SUSPENDED)
def test_a_failure_that_passed_through_it_does_not_end(
    pytester: pytest.Pytester, run: Run, kind: str, scope: str
) -> None:
    """``frame.clear()`` closes a suspended generator, and a fixture that is closed is not torn down."""
    pytester.makeini(f"[pytest]\ncleanup_steps = gc\ncleanup_scope = {scope}")
    start = """
        import pytest

        def fails():
            raise RuntimeError("planted")
        """
    failing = """
        def test_fails(server):
            raise server
        """
    passing = """
        def test_next(server):
            print("still up")
        """
    pytester.makepyfile(test_a=start + failing, test_b=passing)
    pytester.makeconftest(start + SUSPENDED[kind])
    result = run("-s")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["cleanup: 2 clean-ups*"])
    said = [text for text in ("still up", "torn down") for line in result.outlines if text in line]
    assert said == ["still up", "torn down"]
    assert result.stdout.str().index("still up") < result.stdout.str().index("torn down")


class Engine:
    pass


REFS: list[weakref.ref[Engine]] = []


def build() -> Engine:
    engine = Engine()
    REFS.append(weakref.ref(engine))
    return engine


def raises_in_its_body() -> Iterator[None]:
    mine = build()
    yield
    raise RuntimeError("planted", mine)


def is_thrown_into() -> Iterator[None]:
    mine = build()
    yield
    assert mine


@pytest.mark.parametrize("function", [raises_in_its_body, is_thrown_into])
def test_a_generator_that_an_error_ended_lets_go_of_its_locals(function: Callable[[], Iterator[None]]) -> None:
    REFS.clear()
    traceback = ended(function)
    assert REFS[0]() is not None
    _release._empty(traceback)
    assert REFS[0]() is None


def ended(function: Callable[[], Iterator[None]]) -> TracebackType:
    generator = function()
    next(generator)
    try:
        generator.throw(RuntimeError) if function is is_thrown_into else next(generator)  # type: ignore[attr-defined]
    except RuntimeError:
        traceback = sys.exc_info()[2]
    assert traceback is not None
    return traceback


def test_an_error_whose_text_leaves_another_way_is_kept_by_its_name(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeini("[pytest]\ncleanup_steps = gc")
    pytester.makepyfile(
        """
        import pytest

        class Rude(Exception):
            def __str__(self):
                pytest.skip("planted")

        def test_it():
            raise Rude
        """,
        main="""
        import sys
        import pytest

        pytest.main(["-p", "testkit.cleanup.plugin"])
        print("kept:", sys.last_value)
        """,
    )
    pytester.runpython("main.py").stdout.fnmatch_lines(["*1 failed*", "kept: Rude: (its message cannot be read)"])


def test_an_interrupt_does_not_end_what_it_passed_through(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeini("[pytest]\ncleanup_steps = gc")
    pytester.makepyfile(
        """
        import pytest

        def serve():
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as caught:
                error = caught
            yield error
            print("went on")

        RUNNING = serve()

        @pytest.fixture
        def server():
            return next(RUNNING)

        def test_it(server):
            raise server
        """
    )
    pytester.makeconftest(
        """
        def pytest_unconfigure():
            import sys
            print(list(sys.modules["test_an_interrupt_does_not_end_what_it_passed_through"].RUNNING))
        """
    )
    result = run("-s")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["cleanup: 1 clean-up*", "went on", "[[]]"])
