"""``start="preload"``: ranks that are forked from a helper begin, run and end as spawned ones do."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from testkit.errors import ProcessesError
from testkit.processes import _guardian, _leaks, _preload, _preload_main
from testkit.processes import _rank_main as child
from testkit.processes._family import TAG, carriers, runs
from testkit.processes._ladder import stop
from testkit.processes._travel import Travelling

pytestmark = pytest.mark.skipif(not _preload.SUPPORTED, reason="the helper needs /proc and Linux's prctl")

PATIENCE = 20.0  # seconds for something that must happen at some time
NOTHING_LEFT = 2.0  # seconds after SIGKILL to the parent: the feature's own limit


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class One:
    """A rank that was forked here and now: what it says, and how it ends."""

    def __init__(self, folder: Path, body: Callable[..., Any] | None, modules: tuple[str, ...], **options: Any) -> None:
        number = len(list(folder.iterdir()))
        self.tag = f"ranks-{os.getpid()}-{number:032x}"
        self.output = folder / f"output-{number}"
        place = child.Place(
            rank=number,
            world_size=1,
            rendezvous="",
            channel="",
            env=options.pop("env", {}),
            output=str(self.output),
            stack=str(folder / f"stack-{number}"),
            tracker=str(_leaks.Tracker(folder / f"tracker-{number}").path),
            timeout=60,
            alone=True,
            parent=os.getpid(),
        )
        environment = {**os.environ, TAG: self.tag, **options.pop("environment", {})}
        self.message, says = os.pipe()
        hears, self.word = os.pipe()
        payload = Travelling(body or print, options.pop("args", ()))
        payload.folder = folder
        try:
            self.process = _preload.fork_rank(modules, place, payload, says, hears, environment, **options)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(says)
            os.close(hears)

    def go(self) -> One:
        os.write(self.word, b"g")
        return self

    def result(self) -> Any:
        """What the body returned, when the rank has ended with exit code 0."""
        said = self.messages()
        assert child.DONE in said, (said, self.output.read_text())
        assert self.code() == 0
        return pickle.loads(said[child.DONE])

    def messages(self) -> dict[bytes, bytes]:
        assert wait([self.process.sentinel], PATIENCE)
        data = os.read(self.message, 1 << 16)  # not to its end: what a rank leaves may hold it open
        said = {}
        while data:
            kind, length = child.HEADER.unpack_from(data)
            said[kind] = data[child.HEADER.size : child.HEADER.size + length]
            data = data[child.HEADER.size + length :]
        return said

    def code(self) -> int | None:
        assert wait([self.process.sentinel], PATIENCE)
        return self.process.exitcode

    def close(self) -> None:
        os.close(self.message)
        os.close(self.word)


Fork = Callable[..., One]


@pytest.fixture(autouse=True)
def _no_helper_is_left() -> Iterator[None]:
    _preload.close()  # of other tests in this process
    yield
    _preload.close()
    assert not [process for process in psutil.process_iter() if runs(process) and _is_ours(process)]


def _is_ours(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.environ().get(TAG, "").split("-")[:2] in (
            ["start", f"{os.getpid()}"],
            ["ranks", f"{os.getpid()}"],
        )
    return False


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Fork]:
    folder = tmp_path / "ranks"
    folder.mkdir()
    started: list[One] = []

    def fork(body: Callable[..., Any] | None, *modules: str, **options: Any) -> One:
        started.append(One(folder, body, modules, **options))
        return started[-1]

    yield fork
    stop([one.process for one in started if one.process._closing.alive], join=0, terminate=0)
    for one in started:
        one.close()
        one.process.close()


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a module that can be preloaded; its name."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def plant(name: str, code: str) -> str:
        (folder / f"{name}.py").write_text(code)
        return name

    return plant


Plant = Callable[[str, str], str]


def helper() -> psutil.Process:
    """The one helper that runs."""
    ((found,),) = [carriers(one.tag) for one in _preload._helpers.values()]
    assert isinstance(found, psutil.Process)
    return found


# ---------------------------------------------------------------- what is imported, and where


def test_modules_are_imported_once_and_before_any_rank(fork: Fork, plant: Plant, tmp_path: Path) -> None:
    log = tmp_path / "imports"
    name = plant("planted", f"import os\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}} ')")
    bodies = [fork(lambda: ("planted" in sys.modules, os.getppid()), name).go() for _ in range(3)]
    assert {one.result() for one in bodies} == {(True, helper().pid)}
    assert log.read_text() == f"{helper().pid} "


def test_each_rank_is_fresh(fork: Fork, plant: Plant) -> None:
    name = plant("counting", "number = 0")

    def body() -> tuple[int, int]:
        import counting  # type: ignore[import-not-found]

        counting.number += 1
        return counting.number, os.getpid()

    (first, pid), (second, other) = (fork(body, name).go().result() for _ in range(2))
    assert first == second == 1
    assert pid != other


def test_each_list_of_modules_has_its_helper(fork: Fork, plant: Plant) -> None:
    names = [plant(name, "") for name in ("one", "two")]
    parents = [fork(os.getppid, *some).go().result() for some in (names[:1], names, names[:1])]
    assert parents[0] == parents[2] != parents[1]


def test_the_helper_is_no_child_of_ours(fork: Fork) -> None:
    one = fork(lambda: None)
    assert psutil.Process(one.process.pid).parent() == helper()
    assert not {process.pid for process in psutil.Process().children(recursive=True)} & {one.process.pid, helper().pid}


@pytest.mark.parametrize(
    ("code", "problem", "shown"),
    [
        ("raise ValueError('not today')", "module bad cannot be imported: ValueError: not today", "in <module>"),
        ("import nothing_of_this_name", "module bad cannot be imported: ModuleNotFoundError: No module named", ""),
        ("import sys; sys.exit('no')", "module bad cannot be imported: SystemExit: no", "in <module>"),
        ("import os; os.abort()", "the helper ended while importing bad", "Fatal Python error: Aborted"),
        ("print('on my way'); import os; os._exit(1)", "the helper ended while importing bad", ""),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    code: str, problem: str, shown: str, fork: Fork, plant: Plant
) -> None:
    names = plant("good", ""), plant("bad", code)
    with pytest.raises(ProcessesError, match=rf"^processes: {problem}.* \(ranks_preload\)") as caught:
        fork(lambda: None, *names)
    assert shown in str(caught.value)
    assert 'start="spawn"' in str(caught.value).splitlines()[-1]


def test_a_module_that_takes_too_long_is_named(fork: Fork, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_preload, "END_LIMIT", 0.1)
    name = plant("slow", "import time; time.sleep(600)")
    with pytest.raises(ProcessesError, match=r"was not done with importing slow within 1.5 s \(ranks_preload\)"):
        fork(lambda: None, name, limit=1.5)


@pytest.mark.parametrize(
    ("start", "thread"),
    [
        ("threading.Thread(target=time.sleep, args=(600,), name='heart', daemon=True).start()", "heart, comm "),
        ("faulthandler.dump_traceback_later(600)", "comm "),  # no thread of Python's
    ],
)
def test_a_module_that_starts_a_thread_is_refused_with_the_names(
    start: str, thread: str, fork: Fork, plant: Plant
) -> None:
    names = plant("good", ""), plant("beating", f"import faulthandler, threading, time\n{start}")
    with pytest.raises(
        ProcessesError, match=rf"importing beating started 1 thread, which no fork has: {thread}"
    ) as caught:
        fork(lambda: None, *names)
    assert str(caught.value).endswith('next: drop beating from ranks_preload, or use start="spawn"')


def test_a_thread_that_an_import_has_ended_is_no_reason(fork: Fork, plant: Plant) -> None:
    name = plant("brief", "import threading\nt = threading.Thread(target=print); t.start(); t.join()")
    assert fork(lambda: 1, name).go().result() == 1


def test_a_module_that_sets_up_an_accelerator_is_refused(fork: Fork, plant: Plant) -> None:
    cuda = "class cuda:\n    is_initialized = staticmethod(lambda: 'user' in __import__('sys').modules)"
    names = plant("torch", cuda), plant("user", "")
    with pytest.raises(ProcessesError, match=r"importing user set up an accelerator.*torch\.cuda is initialized"):
        fork(lambda: None, *names)


def test_an_open_device_shows_an_accelerator(tmp_path: Path) -> None:
    links = []
    for number, target in enumerate(("/dev/null", "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card0")):
        links.append(str(tmp_path / f"{number}"))
        os.symlink(target, links[-1])
    found = [_preload_main._device([link]) for link in [*links, "/proc/self/fd/no"]]
    assert found == ["", "/dev/nvidia0 is open", "/dev/kfd is open", "/dev/dri/renderD128 is open", "", ""]


# ---------------------------------------------------------------- what a rank finds


def test_a_rank_has_the_environment_folder_and_path_of_now(
    fork: Fork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork(lambda: None)  # the helper knows an older world
    (tmp_path / "late.py").write_text("")
    monkeypatch.setenv("LATE", "\udcff")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["late"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def body() -> Any:
        import late  # type: ignore[import-not-found]  # noqa: F401 - planted

        import_path = sys.path
        return dict(os.environ), os.getcwd(), import_path, sys.argv

    one = fork(body, env={"PLACE": "1"})
    expected = {**os.environ, TAG: one.tag, "PLACE": "1"}
    assert one.go().result() == (expected, str(tmp_path), sys.path, ["late"])


def test_what_imports_change_for_the_process_holds_in_ranks(
    fork: Fork, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "ours")
    monkeypatch.setenv("DROPPED", "x")
    name = plant(
        "setting",
        "import os, sys\nsys.path.insert(0, '/of/the/module')\nos.environ.setdefault('NEW', 'theirs')\n"
        "os.environ['GIVEN'] = 'theirs'\ndel os.environ['DROPPED']",
    )
    names = ("NEW", "GIVEN", "DROPPED")

    def body() -> Any:
        return [os.environ.get(name) for name in names], sys.path[0]

    assert fork(body, name).go().result() == (["theirs", "theirs", None], "/of/the/module")
    later = {"NEW": "ours", "GIVEN": "changed"}
    assert fork(body, name, environment=later).go().result()[0] == ["ours", "changed", None]


def test_a_setting_of_threads_is_there_when_modules_are_imported(fork: Fork, plant: Plant) -> None:
    name = plant("reading", "import os\nseen = os.environ.get('OMP_NUM_THREADS')")

    def body() -> Any:
        import reading  # type: ignore[import-not-found]

        return reading.seen, os.environ.get("OMP_NUM_THREADS"), os.environ.get("OPENBLAS_NUM_THREADS")

    for value in ("3", "5"):
        expected = (value, value, os.environ.get("OPENBLAS_NUM_THREADS"))
        assert fork(body, name, environment={"OMP_NUM_THREADS": value}).go().result() == expected
        assert fork(body, name, env={"OMP_NUM_THREADS": value}).go().result() == expected
    assert len(_preload._helpers) == 2


def test_signals_are_handled_as_in_a_spawned_process(fork: Fork) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(_handlers)
    assert fork(_handlers).go().result() == spawned


def _handlers() -> Any:
    numbers = (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)
    handlers = [getattr(handler, "__name__", handler) for handler in map(signal.getsignal, numbers)]
    return handlers, signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_an_import_printed_is_not_repeated_by_ranks(fork: Fork, plant: Plant) -> None:
    c = "import ctypes; ctypes.CDLL(None).printf(b'and from C')"
    name = plant("talking", f"import sys; sys.stdout.write('hello')\n{c}")
    one = fork(lambda: sys.stdout.write("mine") and None, name).go()
    one.result()
    assert one.output.read_text() == "mine"


def test_no_descriptor_of_another_rank_or_of_the_helper_reaches_a_rank(fork: Fork) -> None:
    def body() -> set[str]:
        links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return {os.path.basename(link) for link in links if "pipe:" in link or "socket:" in link}

    ranks = [fork(body) for _ in range(3)]  # all of them there before any goes on
    found = [one.go().result() for one in ranks]
    # One pipe each way, and one end that all have: it ends with the helper.
    assert [len(links) for links in found] == [3, 3, 3]
    assert len(set.intersection(*found)) == 1


def test_the_tag_is_seen_in_a_rank_and_in_what_it_leaves(fork: Fork) -> None:
    def body() -> int:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if left := os.fork():
                os.write(writing, left.to_bytes(4, "big"))
                os._exit(0)
            time.sleep(600)
        os.wait()
        return int.from_bytes(os.read(reading, 4), "big")

    one = fork(body)
    assert [process.pid for process in carriers(one.tag)] == [one.process.pid]  # from its first instant
    left = one.go().result()
    assert [process.pid for process in carriers(one.tag)] == [left]
    assert [ended.pid for ended in stop(carriers(one.tag), join=0, terminate=0)] == [left]
    assert len(_preload._helpers) == len([helper()]) == 1  # whose tag is what it was


def test_a_tag_of_another_length_is_refused_and_the_helper_goes_on(fork: Fork) -> None:
    with pytest.raises(ProcessesError, match=r"no rank could be forked: run tag 'short' has not the \d+ characters"):
        fork(lambda: None, environment={TAG: "short"})
    before = helper().pid
    assert fork(os.getppid).go().result() == before


def test_a_module_that_writes_over_the_environment_is_refused(fork: Fork, plant: Plant) -> None:
    code = f"""
import ctypes, os
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[47])
at = open("/proc/self/environ", "rb").read().find(b"{TAG}=")
ctypes.memmove(start + at, b"title", 5)
"""
    with pytest.raises(ProcessesError, match="no rank could be forked: its run tag is not in /proc/self/environ"):
        fork(lambda: None, plant("setting_a_title", code))


def test_multiprocessing_works_in_a_rank_and_its_objects_travel(fork: Fork) -> None:
    context = multiprocessing.get_context("spawn")
    box, event = context.Queue(), context.Event()
    reading, writing = context.Pipe(duplex=False)

    def body(box: Any, event: Any, writing: Any) -> Any:
        box.put("from the rank")
        writing.send("by pipe")
        mine = multiprocessing.get_context("fork").Queue()
        process = multiprocessing.get_context("fork").Process(target=mine.put, args=("from a child",))
        process.start()
        got = mine.get(timeout=10)
        process.join()
        parent = multiprocessing.parent_process()
        return got, process.exitcode, event.wait(10), parent is not None and parent.is_alive()

    one = fork(body, args=(box, event, writing)).go()
    assert box.get(timeout=10) == "from the rank"
    assert reading.recv() == "by pipe"
    event.set()
    assert one.result() == ("from a child", 0, True, True)
    for end in (reading, writing, box):
        end.close()
    box.join_thread()


def test_random_numbers_differ_between_ranks(fork: Fork) -> None:
    pytest.importorskip("numpy")

    def body() -> Any:
        import random

        import numpy

        return random.random(), numpy.random.random()

    results = [fork(body, "numpy", "random", "numpy.random").go().result() for _ in range(2)]
    assert len({number for result in results for number in result}) == 4


@pytest.mark.parametrize("setting", [{}, {"OMP_NUM_THREADS": "1"}], ids=str)
def test_libraries_have_the_threads_that_a_spawned_process_has(
    setting: Mapping[str, str], fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("numpy")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(_threads)
    assert fork(_threads, "numpy", "torch").go().result() == spawned


def _threads() -> tuple[int, list[int]]:
    """Those of torch, and those that each OpenBLAS has."""
    import numpy  # noqa: F401 - what is tested
    import torch

    with open("/proc/self/maps") as file:
        paths = {line.split()[-1] for line in file if "openblas" in line}
    names = [f"{start}openblas_get_num_threads{end}" for start in ("", "scipy_") for end in ("", "64_")]
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    counts = [getattr(library, name)() for library in libraries for name in names if hasattr(library, name)]
    return torch.get_num_threads(), counts


@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="needs a GPU of NVIDIA's")
def test_a_rank_can_use_cuda(fork: Fork) -> None:
    pytest.importorskip("torch")

    def body() -> Any:
        import torch

        return torch.ones(3, device="cuda").sum().item()

    ranks = [fork(body, "torch").go() for _ in range(2)]
    assert [one.result() for one in ranks] == [3.0, 3.0]


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: None, 0),
        (lambda: sys.exit(3), 3),
        (lambda: sys.exit("no"), 1),
        (lambda: os._exit(7), 7),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: ctypes.string_at(0), -signal.SIGSEGV),
    ],
    ids=["returns", "exit 3", "exit text", "_exit 7", "SIGKILL", "SIGSEGV"],
)
def test_the_exit_code_is_known(body: Callable[[], Any], code: int, fork: Fork) -> None:
    one = fork(body)
    assert one.process.exitcode is None
    assert not wait([one.process.sentinel], 0)
    one.go()
    assert one.code() == code
    assert not one.process.lost
    one.process.kill()  # nothing happens
    one.process.close()
    assert one.process.exitcode == code


def test_an_interrupt_is_exit_code_1_as_in_a_spawned_process(fork: Fork) -> None:
    def body() -> None:
        raise KeyboardInterrupt

    assert fork(body).go().code() == 1


@pytest.mark.parametrize(("what", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)])
def test_a_rank_is_ended(what: str, number: int, fork: Fork) -> None:
    one = fork(lambda: None)
    getattr(one.process, what)()
    assert one.code() == -number


kept: list[Any] = []  # in a rank only


def test_a_rank_ends_with_its_threads_exit_hooks_and_open_files(fork: Fork, tmp_path: Path) -> None:
    def body() -> None:
        import atexit
        import tempfile
        import weakref

        def slow() -> None:
            if threading.main_thread().is_alive():
                threading.main_thread().join()
            (tmp_path / "thread").touch()

        threading.Thread(target=slow).start()
        atexit.register((tmp_path / "hook").touch)
        kept.append(tempfile.TemporaryDirectory(dir=tmp_path))
        weakref.finalize(kept[0], (tmp_path / "finalizer").touch)
        kept.append(open(tmp_path / "file", "w"))  # noqa: SIM115 - left open
        kept[1].write("whole")

    fork(body).go().result()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "ranks") == [
        "file",
        "finalizer",
        "hook",
        "thread",
    ]
    assert (tmp_path / "file").read_text() == "whole"


def test_what_an_import_made_is_cleaned_up_by_the_helper(fork: Fork, plant: Plant) -> None:
    name = plant("making", "import tempfile\nfolder = tempfile.TemporaryDirectory()")

    def body() -> str:
        import making  # type: ignore[import-not-found]

        return str(making.folder.name)

    folder = Path(fork(body, name).go().result())
    assert fork(body, name).go().result() == str(folder)
    assert folder.exists()
    _preload.close()
    assert not folder.exists()


def test_no_zombie_and_no_descriptor_stays_in_the_helper(fork: Fork) -> None:
    waiting = fork(lambda: None)
    before = helper().num_fds()
    for _ in range(10):
        one = fork(lambda: None)
        one.process.kill()
        assert one.code() == -signal.SIGKILL
    assert [process.pid for process in helper().children()] == [waiting.process.pid]
    until(lambda: helper().num_fds() == before)  # it is told of an end just before the end of that pipe


def test_a_rank_that_nobody_waits_for_does_not_harm_the_helper(fork: Fork) -> None:
    one, old = fork(lambda: None), helper()
    one.process.close()
    os.kill(one.process.pid, signal.SIGKILL)
    until(lambda: not old.children())
    assert fork(os.getppid).go().result() == old.pid


def test_threads_may_start_ranks_at_once(fork: Fork) -> None:
    pids: list[int] = []
    threads = [threading.Thread(target=lambda: pids.append(fork(os.getpid).go().result())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(set(pids)) == 6
    assert len(_preload._helpers) == 1


def test_ranks_end_with_a_helper_that_is_killed_and_the_next_has_a_new_one(fork: Fork) -> None:
    ranks = [fork(lambda: time.sleep(600)) for _ in range(2)]
    processes = [psutil.Process(one.process.pid) for one in ranks]
    old = helper()
    old.kill()
    assert [one.code() for one in ranks] == [-signal.SIGKILL] * 2
    assert [one.process.lost for one in ranks] == [True, True]
    assert not any(runs(process) for process in processes)
    assert fork(os.getppid).go().result() == helper().pid != old.pid


def test_a_helper_that_does_not_answer_is_replaced(fork: Fork, monkeypatch: pytest.MonkeyPatch) -> None:
    fork(lambda: None)
    old = helper()
    old.suspend()
    with monkeypatch.context() as patch:
        for name in ("FORK_LIMIT", "END_LIMIT"):
            patch.setattr(_preload, name, 0.3)
        with pytest.raises(ProcessesError, match=r"the helper was not done with forking a rank within 0.3 s"):
            fork(lambda: None)
    assert not runs(old)
    assert fork(os.getppid).go().result() == helper().pid


def test_a_child_of_ours_does_not_keep_the_helper(fork: Fork) -> None:
    fork(lambda: None)
    old = helper()
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        next(iter(_preload._helpers.values())).link.close()
        until(lambda: not runs(old))
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(pid, 0)


PARENT = """
import os, sys, time
from pathlib import Path
from testkit.processes import run_ranks

def body(folder):
    (Path(folder) / f"rank {os.getpid()} {os.getppid()}").touch()
    if os.fork() == 0:
        os.setsid()
        (Path(folder) / f"left {os.getpid()}").touch()
    time.sleep(600)

run_ranks(body, 2, args=(sys.argv[1],), start="preload")
"""
MARK = "TESTKIT_PRELOAD_TEST"


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "guardian killed too"])
def test_helper_and_ranks_end_with_a_parent_that_is_killed(guarded: bool, tmp_path: Path) -> None:
    environment = {**os.environ, MARK: str(tmp_path), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=environment)
    try:
        until(lambda: len([*tmp_path.glob("rank *"), *tmp_path.glob("left *")]) == 4)
        ending = {int(pid) for path in tmp_path.glob("rank *") for pid in path.name.split()[1:]}
        if guarded:
            ending |= {int(path.name.split()[1]) for path in tmp_path.glob("left *")}
        assert len(ending) == (5 if guarded else 3)
        assert ending < set(_marked(tmp_path))
        if not guarded:
            (guardian,) = [pid for pid, command in _marked(tmp_path).items() if _guardian.__file__ in command]
            os.kill(guardian, signal.SIGKILL)
        parent.kill()
        until(lambda: not ending & set(_marked(tmp_path)), NOTHING_LEFT)
    finally:
        parent.kill()
        parent.wait(5)
        for pid in _marked(tmp_path):
            os.kill(pid, signal.SIGKILL)


def _marked(folder: Path) -> dict[int, str]:
    """Who runs and carries this test's mark, and its command line."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder) and runs(process):
                found[process.pid] = " ".join(process.cmdline())
    return found
