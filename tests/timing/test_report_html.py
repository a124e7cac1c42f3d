"""The HTML report: one file that nothing can break out of, and that works, is fast and is readable in a browser.

The browser tests need Chromium (Debian: ``apt-get install chromium``) and fail without it, unless TESTKIT_NO_BROWSER=1.
With TESTKIT_SCREENSHOTS=DIR they leave the pictures of docs/timing_report.md there.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from testkit.errors import TimingError
from testkit.timing import _report_html as page_maker
from testkit.timing._facts import facts_of
from testkit.timing._lanes import lanes_of
from testkit.timing._plots import HIGH, WIDE, curve, ticks, timeline, treemap
from testkit.timing._report_html import html_report
from testkit.timing._rows import Row
from testkit.timing._run import Collected, Fixture, Header, Imported, Jit, Record, Run, Timed, Worker
from testkit.timing._say import spent
from testkit.timing._trend import Series

HOSTILE = [
    "</script><script>window.boom = 1</script>",
    "<img src=x onerror='window.boom = 1'>",
    '"\' onmouseover="window.boom = 1"',
    "{{ 7 * 7 }}{% raw %}",
    "<!--<script>",
    "]]>&lt;&amp;",
    "".join(map(chr, [*range(32), *range(127, 160)])),
    "\u202egnp.exe\u2028\u2029\ufeff\ud800",
    "x" * 10_000,
]

FOLDERS = {
    "attention": ["paged", "prefill", "mla", "sliding_window"],
    "gemm": ["skinny", "grouped", "fp8", "splitk", "epilogue"],
    "moe": ["routing", "grouped_gemm", "topk"],
    "quant": ["int4", "fp8_block", "smooth"],
    "sampling": ["top_p", "speculative"],
    "comm": ["allreduce", "all_to_all"],
    "cache": ["paged_kv", "swap"],
}
FILES = [f"tests/{folder}/test_{name}.py" for folder, names in FOLDERS.items() for name in names]
SLOWER = ("tests/cache/test_paged_kv.py", "tests/comm/test_allreduce.py")
SLOW_TO_IMPORT = "tests/attention/test_mla.py"


def gemm_run(tests: int = 2_000, workers: int = 4, *, day: int = 17, slower: bool = False) -> Run:
    """A simulated run of kernel tests: module fixtures, clean-up after each test, compilation, an idle tail."""
    chance = random.Random(22)
    header = Header(f"nightly-{day}", started=1_796_000_000.0 + 86_400 * day, host="gpu-07", python="3.12.7")
    made = Run(header, seconds=0.0, exit_status=1, complete=True)
    header.pytest = "9.2.0"
    clocks = {f"gw{number}": 2.0 + number / 10 for number in range(workers)}
    for worker in clocks:
        made.workers[worker] = Worker(worker, "gpu-07", started=clocks[worker] - 1.6)
        for file in FILES:
            took = 3.4 if file == SLOW_TO_IMPORT else 0.1 + chance.random() / 20
            made.collection.append(Collected(file, worker, took))
            made.imports.append(Imported(file, worker, took * 0.8))
            clocks[worker] += took
        made.workers[worker].ready = clocks[worker]
    barrier = max(clocks.values()) + 0.5
    clocks = dict.fromkeys(clocks, barrier)
    weights = {file: chance.paretovariate(1.3) for file in FILES}
    total = sum(weights.values())
    for file in sorted(FILES, key=lambda _: chance.random()):
        worker = min(clocks, key=lambda name: clocks[name])
        count = max(4, round(tests * weights[file] / total))
        slow = random.Random(f"{file} {day}").gauss(1, 0.02) * (1.3 if slower and file in SLOWER else 1.0)
        clocks[worker] = _file(made, file, worker, clocks[worker], count, slow)
    made.seconds = max(clocks.values()) + 1.0
    return made


def _file(run: Run, file: str, worker: str, now: float, tests: int, slow: float) -> float:
    """All tests of a file on one worker from ``now`` on; returns when they were done."""
    chance = random.Random(file)
    cost = 1 + 3 * chance.random() if chance.random() < 0.6 else 0.0
    if cost:
        name = chance.choice(["engine", "weights", "reference", "process_group"])
        run.fixtures.append(Fixture(name, "module", "", file, worker, now, cost))
        now += cost
    mean = chance.lognormvariate(-1.6, 0.6) * slow
    for number in range(tests):
        function = ["forward", "backward", "bitwise", "edges"][number * 4 // tests]
        params = (
            f"{chance.choice([13, 64, 2880])}-{chance.choice([3072, 4096])}-{'bf16' if number % 2 else 'fp16'}-{number}"
        )
        timed = Timed(
            f"{file}::test_{function}[{params}]", worker, now, 0.004, mean * chance.lognormvariate(0, 0.7), 0.001
        )
        timed.rss, timed.gpu, timed.gc = (2 << 30) + number * 100_000, chance.randrange(1, 12) << 30, 0.001
        if number % 17 == 0:
            timed.jit = Jit(0.3 + chance.random(), 2, 3)
            timed.call += timed.jit.seconds
        fate = chance.random()
        if fate < 0.004:
            run.tests.append(replace(timed, phases="prp"))
            timed = replace(timed, start=timed.start + timed.seconds + 0.002, attempt=2)
        elif fate < 0.006:
            timed.phases = "pfp"
        elif fate < 0.03:
            timed.phases, timed.call, timed.jit = "s-p", 0.0, None
        run.tests.append(timed)
        step = 0.05 + chance.random() / 50
        now = timed.start + timed.seconds + 0.001 + step
        run.records.append(Record("cleanup", timed.id, {"seconds": step}, worker, now))
        now += 0.004
    run.fixtures.append(
        Fixture("inputs", "function", "", file, worker, now, 0.002 * tests, 0.0005 * tests, None, tests)
    )
    if cost:
        run.fixtures[-2].teardown_start, run.fixtures[-2].teardown = now, cost * 0.3
        now += cost * 0.3
    return now


def past_runs() -> list[Run]:
    return [gemm_run(day=day) for day in range(17)]


def hostile_run() -> Run:
    run = Run(Header("r", started=1.0), {"main": Worker("main")}, seconds=60.0, exit_status=1, complete=True)
    for number, odd in enumerate(HOSTILE):
        run.tests.append(Timed(f"{odd}.py::test_{odd}[{odd}]", "main", 2.0 * number, call=1.0, phases="pfp"))
        run.fixtures.append(Fixture(odd, "module", odd, f"{odd}.py", "main", 2.0 * number + 1, 0.25))
        run.records.append(Record(odd, odd, {"seconds": 0.25}, "main", 2.0 * number + 1.75))
        run.collection.append(Collected(f"{odd}.py", "main", 0.125))
    run.tests[0].worker = HOSTILE[0]
    run.header.host = run.header.pytest = run.header.python = HOSTILE[0]
    run.notes = list(HOSTILE)
    return run


class Outline(HTMLParser):
    """Elements that were opened, with their attributes; fails where one is closed that is not open."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        kind = dict(self.elements[-1][1]).get("type") or "" if self.elements else ""
        if self._open:
            name = f"{self._open[-1]} {kind}".strip()
            self.texts[name] = self.texts.get(name, "") + text


def data_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Outline(page).texts["script application/json"])
    return found


# The file


def test_the_page_refers_to_nothing_outside_itself_and_its_policy_allows_its_own_script_only() -> None:
    page = html_report([gemm_run(200)], past_runs()[:4])
    outline = Outline(page)
    references = {value for _, found in outline.elements for name, value in found.items() if name in ("src", "href")}
    assert references == {"#tests", "data:,"}
    assert not re.search(r"https?:|//[a-z]|url\(|@import| style=| on[a-z]+=", page.replace("</", ""))
    policy = next(found["content"] for tag, found in outline.elements if "http-equiv" in found)
    assert policy is not None
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(outline.texts[tag].encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")


def test_ids_and_names_in_the_page_are_unique_and_every_section_has_a_title() -> None:
    outline = Outline(html_report([gemm_run(200)], past_runs()[:4]))
    ids = [found["id"] for _, found in outline.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for tag, found in outline.elements:
        if tag == "section":
            assert found.get("aria-label") or found.get("aria-labelledby") in ids
    assert {"parts-title", "top-title", "timeline-title", "tree-title", "fixtures-title", "history-title"} <= set(ids)


@pytest.mark.parametrize("workers", [2, 150])
def test_ten_thousand_tests_fit_in_two_megabytes(workers: int) -> None:
    run = gemm_run(10_000, workers)
    page = html_report([run])
    assert len(run.tests) > 9_900
    assert len(page.encode()) <= 2_000_000
    assert len(data_of(page)["tests"]) == len(facts_of([run]).tests)


def test_long_ids_leave_room_for_fewer_tests() -> None:
    run = Run(
        Header("r"), {"main": Worker("main")}, [Timed(f"a.py::t[{'x' * 4_000}{n}]", call=n) for n in range(10_000)]
    )
    page = html_report([run])
    assert len(page.encode()) <= 2_000_000
    data = data_of(page)
    assert data["all"] == 10_000
    assert 4_000 < len(data["tests"]) < 10_000


def test_the_data_of_the_page_is_the_tests_slowest_first() -> None:
    run = gemm_run(100)
    data = data_of(html_report([run]))
    file, name, params, verdict, worker, setup, call, teardown, attempts, compiling, gpu = data["tests"][0]
    slowest = max(facts_of([run]).tests.values(), key=lambda test: test.final.seconds).final
    assert f"{data['files'][file]}::{data['names'][name]}[{params}]" == slowest.id
    assert (data["verdicts"][verdict], data["workers"][worker]) == ("passed", slowest.worker)
    assert [setup, call, teardown] == [round(1e6 * s) for s in (slowest.setup, slowest.call, slowest.teardown)]
    assert (attempts, compiling, gpu) == (1, round(1e6 * slowest.jit.seconds) if slowest.jit else 0, slowest.gpu >> 20)


def test_no_id_breaks_out_of_the_page() -> None:
    harmless = hostile_run()
    for kind in (harmless.tests, harmless.fixtures, harmless.records, harmless.collection):
        for number, row in enumerate(kind):
            for name in ("id", "name", "param", "node", "kind", "nodeid", "file"):
                if hasattr(row, name):
                    setattr(row, name, getattr(row, name).replace(HOSTILE[number], f"h{number}"))
    harmless.tests[0].worker = "h"
    harmless.header.host = harmless.header.pytest = harmless.header.python = "h"
    harmless.notes = [f"h{number}" for number in range(len(HOSTILE))]
    one, two = Outline(html_report([hostile_run()])), Outline(html_report([harmless]))
    counts = [
        sum(tag == name for tag, _ in outline.elements) for outline in (one, two) for name in ("script", "img", "tr")
    ]
    assert counts[:3] == counts[3:] == [2, 0, counts[2]]
    assert set.union(*({*found} for _, found in one.elements)) == set.union(*({*found} for _, found in two.elements))
    page = html_report([hostile_run()])
    assert not {char for char in page if not char.isprintable()} - {"\n", "\u00a0"}
    assert len(page.encode()) < 100_000
    assert "49" not in one.texts["h1"]


def shards() -> list[Run]:
    runs = []
    for number, attempt in ((1, 1), (2, 1), (2, 2)):
        run = gemm_run(60, 2)
        run.header = Header("ci-9", f"{number}/3", attempt, 1_796_000_000.0 + attempt)
        runs.append(run)
    return runs


IMPORTED = Run(Header("j", started=1.0, origin="junit"), {"main": Worker("main")}, [Timed("a.py::t")], complete=True)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (shards(), ["Failed: ci-9", "shard 2/3 attempt 2 gw1", "shard 3/3 has no run file"]),
        ([replace(gemm_run(60), complete=False, seconds=None, path="x.partial")], ["did not finish: x.partial"]),
        ([Run(Header("r"), {"main": Worker("main")}, exit_status=5, seconds=1.0, complete=True)], ["RAN NO TEST"]),
        ([Run(Header("r"))], ["RAN NO TEST"]),
        ([IMPORTED], ["comes from junit", "not known"]),
        ([IMPORTED, replace(gemm_run(60), header=Header("k", started=2.0))], ["1 earlier run for comparison"]),
        ([hostile_run()], ["FAILED: 9 of 9 tests"]),
    ],
    ids=["shards and attempts", "partial", "no test", "nothing", "imported", "after an imported", "hostile"],
)
def test_every_kind_of_run_has_a_page(runs: list[Run], words: list[str]) -> None:
    page = html_report(runs).replace("\u00a0", " ")
    Outline(page)
    for text in words:
        assert text in page


def test_without_jinja2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(TimingError, match=r"(?s)needs jinja2.*pip install kernel-testkit\[report\]"):
        html_report([gemm_run(10)])


# Plots


def test_a_lane_draws_the_share_of_every_kind_in_every_moment() -> None:
    """The area of a kind's rectangles is its share of the lane: from the path back to seconds."""
    run = gemm_run()
    facts = facts_of([run])
    for drawn, lane in zip(timeline(facts), lanes_of(run), strict=True):
        for kind, path in drawn.paths.items():
            parts = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-", path)
            area = sum(float(wide) * float(high) for _, _, wide, high in parts)
            assert area / WIDE / HIGH * facts.elapsed == pytest.approx(lane.parts[kind], rel=0.12, abs=0.3)
            for x, y, wide, high in parts:
                assert float(x) + float(wide) <= WIDE + 0.2
                assert float(y) + float(high) <= HIGH


def test_stretches_follow_the_files_of_a_worker_and_count_every_test() -> None:
    run = gemm_run()
    for drawn in timeline(facts_of([run])):
        assert sum(one.tests for one in drawn.stretches) == drawn.lane.tests
        for one, two in zip(drawn.stretches, drawn.stretches[1:], strict=False):
            assert one.begin < one.end <= two.begin


def test_more_lanes_get_fewer_columns_and_beyond_a_hundred_are_counted() -> None:
    page = html_report([gemm_run(1_000, 120)])
    assert page.count('class="tracks"') == 100
    assert "20 more workers are not drawn." in page


def test_the_areas_of_the_treemap_are_the_seconds_of_its_rows() -> None:
    rows = [Row(f"f{number}", call=1000.0 / (1 + number) ** 1.2) for number in range(200)]
    cells = treemap(rows)
    whole = sum(row.seconds for row in rows)
    for cell in cells:
        assert cell.width * cell.height / 10_000 == pytest.approx(cell.seconds / whole, rel=0.02)
        assert cell.x + cell.width <= 100.1
        assert cell.y + cell.height <= 100.1
    assert cells[-1].name == f"{200 - len(cells) + 1} more"
    assert sum(cell.seconds for cell in cells) == pytest.approx(whole)
    assert treemap([]) == treemap([Row("nothing")]) == []


def test_shades_say_how_much_was_no_body_of_a_test() -> None:
    rows = [Row("a", call=10.0), Row("b", call=5.0, setup=5.0), Row("c", shared=10.0)]
    assert [cell.shade for cell in treemap(rows)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (0.004, ["0", "0.5 ms", "1 ms", "1.5 ms", "2 ms", "2.5 ms", "3 ms", "3.5 ms", "4 ms"]),
        (7.0, ["0", "1 s", "2 s", "3 s", "4 s", "5 s", "6 s", "7 s"]),
        (281.0, ["0", "1:00 min", "2:00 min", "3:00 min", "4:00 min"]),
        (
            7200.0,
            [
                "0",
                "15:00 min",
                "30:00 min",
                "45:00 min",
                "60:00 min",
                "75:00 min",
                "90:00 min",
                "105:00 min",
                "120:00 min",
            ],
        ),
        (100_000.0, ["0", "6:00 h", "12:00 h", "18:00 h", "24:00 h"]),
    ],
)
def test_ticks_are_round_times(seconds: float, texts: list[str]) -> None:
    found = ticks(seconds)
    assert [text for _, text in found] == texts
    assert [x for x, _ in found] == sorted(x for x, _ in found)


def test_a_curve_holds_its_points_and_its_band() -> None:
    drawn = curve(Series("a.py", [10.0, None, 12.0, 30.0], (9.0, 11.0, 13.0)))
    assert len(drawn.points) == 3
    assert drawn.low < 9.0
    assert drawn.high > 30.0
    assert drawn.band is not None
    top, height, middle = drawn.band
    assert 0 < drawn.points[-1][1] < top < middle < top + height < 96


# The browser


class Browser:
    """Chromium without a window, driven over a pipe with its DevTools protocol."""

    FLAGS = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
    )
    LIMIT = 60.0

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        # It reads from 3 and writes to 4, which may be numbers of ours: sources first go far above.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (theirs_in, theirs_out, null)]
        moves = [(high[0], 3), (high[1], 4), (high[2], 1), (high[2], 2)]
        command = [program, *self.FLAGS, f"--user-data-dir={profile}", "about:blank"]
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in moves]
        self.pid = os.posix_spawn(program, command, os.environ, file_actions=actions, setpgroup=0)
        for end in (theirs_in, theirs_out, null, *high):
            os.close(end)
        self._number = 0
        self._text = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + self.LIMIT
        while b"\0" not in self._text:
            readable, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._in, 1 << 16) if readable else b""
            assert part, "Chromium is gone, or did not answer"
            self._text += part
        message, _, self._text = self._text.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(
        self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, script: bool = True
    ) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def picture(self, path: Path, selector: str = "html") -> bytes:
        box = self.run(
            f"(box => [box.x + scrollX, box.y + scrollY, box.width, box.height])"
            f"(document.querySelector('{selector}').getBoundingClientRect())"
        )
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        data = base64.b64decode(answer["data"])
        path.write_bytes(data)
        return data

    def close(self) -> None:
        self._session = None
        os.write(self._out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        end = time.monotonic() + 20
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
            select.select([self._in], [], [], 0.05)
        for pipe in (self._in, self._out):
            os.close(pipe)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if os.environ.get("TESTKIT_NO_BROWSER") == "1":
        pytest.skip("no browser looks at the HTML report: TESTKIT_NO_BROWSER=1")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.fail("no Chromium to look at the HTML report: apt-get install chromium, or set TESTKIT_NO_BROWSER=1")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html_report([gemm_run(slower=True)], past_runs()), encoding="utf-8")
    return path


def rows_shown(browser: Browser, column: int, table: str = "#tests") -> list[str]:
    script = f"[...document.querySelectorAll('{table} tbody tr')].map(row => row.cells[{column}].textContent)"
    found: list[str] = browser.run(script)
    return found


def told(browser: Browser) -> str:
    return str(browser.run("document.querySelector('#tests output').textContent"))


def test_the_page_loads_without_a_message_and_without_a_request(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(
        "document.querySelectorAll('button, .tracks, [data-file]')"
        ".forEach(one => one.dispatchEvent(new Event('click', {bubbles: true, cancelable: true})))"
    )
    methods = [event.get("method") for event in browser.events]
    assert not {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"} & set(methods)
    asked = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}


def test_hostile_ids_run_nothing_and_are_shown(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(html_report([hostile_run()]), encoding="utf-8")
    browser.open(path)
    assert browser.run("window.boom") is None
    assert browser.run("document.images.length") == 0
    assert len(rows_shown(browser, 0)) == len(HOSTILE)
    assert any("</script><script>window.boom = 1</script>" in text for text in rows_shown(browser, 0))
    assert not {event.get("method") for event in browser.events} & {"Runtime.exceptionThrown", "Log.entryAdded"}


def test_columns_sort_both_ways_and_say_so(browser: Browser, page: Path) -> None:
    browser.open(page)
    head = "[...document.querySelectorAll('#tests th')]"
    assert browser.run(f"{head}[1].getAttribute('aria-sort')") == "descending"
    longest = rows_shown(browser, 0)[0]
    browser.run(f"{head}[1].querySelector('button').click()")
    assert browser.run(f"{head}[1].getAttribute('aria-sort')") == "ascending"
    assert rows_shown(browser, 0)[0] != longest
    browser.run(f"{head}[0].querySelector('button').click()")
    names = rows_shown(browser, 0)
    assert names == sorted(names)
    assert browser.run(f"{head}.map(one => one.getAttribute('aria-sort'))")[:2] == ["ascending", "none"]
    browser.run("document.querySelectorAll('[aria-labelledby=fixtures-title] th button')[5].click()")
    times = [int(text.replace(",", "")) for text in rows_shown(browser, 5, "[aria-labelledby=fixtures-title]")]
    assert times == sorted(times, reverse=True)


def type_into_filter(browser: Browser, text: str) -> None:
    browser.run(
        f"(one => {{ one.value = {json.dumps(text)}; one.dispatchEvent(new Event('input')); }})"
        "(document.querySelector('#tests input'))"
    )


def test_a_filter_keeps_the_rows_with_all_its_words(browser: Browser, page: Path) -> None:
    browser.open(page)
    every = len(facts_of([gemm_run(slower=True)]).tests)
    assert told(browser) == f"{every:,} rows of {every:,}"
    type_into_filter(browser, "FAILED test_")
    names, outcomes = rows_shown(browser, 0), rows_shown(browser, 2)
    assert names
    assert set(outcomes) == {"failed"}
    type_into_filter(browser, "no such test")
    assert told(browser) == f"0 rows of {every:,}"
    type_into_filter(browser, "")
    assert told(browser) == f"{every:,} rows of {every:,}"


def test_more_rows_come_on_demand(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert len(rows_shown(browser, 0)) == 25
    assert browser.run("document.querySelector('#tests .more').textContent").startswith("Show 100 more of ")
    browser.run("document.querySelector('#tests .more').click()")
    assert len(rows_shown(browser, 0)) == 125


def test_the_script_writes_times_as_the_page_does(browser: Browser, tmp_path: Path) -> None:
    seconds = [0.0, 3e-7, 0.00042, 0.0042, 0.0423, 0.9993, 0.9997, 4.213, 9.9961, 59.94, 59.97, 723.3, 3599.7, 7262.0]
    run = Run(Header("r"), {"main": Worker("main")}, [Timed(f"a::t[{n}]", call=s) for n, s in enumerate(seconds)])
    path = tmp_path / "times.html"
    path.write_text(html_report([run]), encoding="utf-8")
    browser.open(path)
    assert rows_shown(browser, 1) == [spent(round(s, 6)) for s in sorted(seconds, reverse=True)]


def test_a_cell_of_the_map_lists_the_tests_of_its_file_and_marks_them_in_the_timeline(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('.chosen[d*=M]').length") == 0
    cell = "document.querySelector('.map a')"
    file = browser.run(f"{cell}.dataset.file")
    browser.run(f"{cell}.dispatchEvent(new Event('click', {{bubbles: true, cancelable: true}}))")
    assert all(name.startswith(f"{file}::") for name in rows_shown(browser, 0))
    assert f"rows in {file} of" in told(browser)
    assert browser.run("document.querySelectorAll('.chosen[d*=M]').length") == 1
    browser.run("document.querySelector('#tests .all').click()")
    assert " in " not in told(browser)
    assert browser.run("document.querySelectorAll('.chosen[d*=M]').length") == 0


def test_the_keyboard_is_enough(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('.tracks').focus()")
    readout = "document.querySelector('#readout').textContent"
    browser.press("ArrowRight")
    first = browser.run(readout)
    assert re.fullmatch(r"gw0, [\d.]+ s to .*: tests/.*\.py, \d+ tests?(, \d+ failed)?", first)
    browser.press("End")
    assert browser.run(readout) != first
    browser.press("Home")
    assert browser.run(readout) == first
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.dataset.lane") == "1"
    browser.press("ArrowRight")
    file = browser.run(readout).split(": ")[1].split(",")[0]
    browser.press("Enter")
    assert all(name.startswith(f"{file}::") for name in rows_shown(browser, 0))
    browser.run("document.querySelector('#tests th button').focus()")
    browser.press("Enter")
    assert browser.run("document.activeElement.parentNode.getAttribute('aria-sort')") == "ascending"
    reached = set()
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(120):
        browser.press("Tab")
        reached.add(browser.run("document.activeElement.closest('section, details')?.querySelector('h2')?.textContent"))
    assert {"Workers over time", "Where time concentrates", "Slowest fixtures", "Tests", "All files"} <= reached


def test_everything_that_can_be_used_has_a_name(browser: Browser, page: Path) -> None:
    browser.open(page)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named: dict[str, int] = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in ("button", "link", "searchbox", "image", "region", "list") and not node.get("ignored"):
            assert node.get("name", {}).get("value") or role == "list", node
            named[role] = named.get(role, 0) + 1
    assert named["button"] > 15
    assert named["link"] > 30
    assert named["image"] >= 6
    assert named["searchbox"] == 2  # those in folded sections are not there yet
    lanes = browser.run("[...document.querySelectorAll('.tracks')].map(one => one.getAttribute('aria-label'))")
    assert lanes[0].startswith("gw0: ")


# Of every text: its colour against what lies behind it, as WCAG 2 computes contrast.
CONTRAST = """(() => {
  const shine = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    const line = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    return { a, l: 0.2126 * line(r) + 0.7152 * line(g) + 0.0722 * line(b) };
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const rect = at.tagName === "svg" && at.querySelector(":scope > rect, :scope > a > rect");
      const color = rect ? getComputedStyle(rect).fill : getComputedStyle(at).backgroundColor;
      if (color !== "none" && shine(color).a === 1) return shine(color).l;
    }
    return 1;
  };
  const poor = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.checkVisibility() || ["SCRIPT", "title"].includes(one.tagName)) continue;
    const style = getComputedStyle(one);
    const [x, y] = [shine(one instanceof SVGElement ? style.fill : style.color).l, behind(one)];
    const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (ratio < 4.5) poor.push([one.tagName, one.textContent.slice(0, 40), ratio]);
  }
  return poor;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.run(CONTRAST) == []
    shade = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", shade))) < 150) is dark
    browser.run("document.documentElement.style.setProperty('--quiet', '#808080')")
    assert browser.run(CONTRAST), "the check finds a text that is hard to read"


@pytest.mark.parametrize("width", [360, 768, 2560])
def test_no_width_makes_the_page_scroll_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_paper_gets_everything_unfolded_and_no_tools(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('details')].every(one => one.open)")
    assert not browser.run("[...document.querySelectorAll('.tools')].some(one => one.checkVisibility())")
    assert browser.run("getComputedStyle(document.documentElement).getPropertyValue('--text')").strip().startswith("#1")


def test_without_its_script_the_page_still_tells_everything_but_all_tests(browser: Browser, page: Path) -> None:
    browser.open(page, script=False)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    texts = {node.get("name", {}).get("value") for node in nodes if not node.get("ignored")}
    assert {"Workers over time", "Where time concentrates", "Tests", "process_group"} <= texts
    assert not any(node.get("role", {}).get("value") == "searchbox" for node in nodes)


def test_a_page_that_leaves_tests_out_says_so(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_maker, "ROOM", 4_000)
    path = tmp_path / "cut.html"
    path.write_text(html_report([gemm_run(200)]), encoding="utf-8")
    browser.open(path)
    every = len(facts_of([gemm_run(200)]).tests)
    assert re.fullmatch(rf"(\d\d) rows of \1, the slowest of {every}", told(browser))


@pytest.mark.parametrize(
    ("name", "dark", "selector"),
    [
        ("timing_report", False, "html"),
        ("timing_timeline", True, "[aria-labelledby=timeline-title]"),
        ("timing_history", False, "[aria-labelledby=history-title]"),
    ],
)
def test_pictures(browser: Browser, page: Path, tmp_path: Path, name: str, dark: bool, selector: str) -> None:
    """They cannot be judged here; that they are drawn, and small enough to be kept with the docs, can."""
    browser.open(page, width=1050, dark=dark)
    if selector == "html":
        # From the top to the map: what fits on a page of the docs.
        browser.run(
            "let one = document.querySelector('[aria-labelledby=fixtures-title]');"
            "for (; one; one = one.nextElementSibling) one.hidden = true;"
        )
        browser.run("document.querySelector('footer').hidden = true")
    browser.run("document.querySelectorAll('.tracks')[2].focus({focusVisible: false})")
    browser.press("ArrowRight")
    browser.run("document.activeElement.blur()")
    data = browser.picture(Path(os.environ.get("TESTKIT_SCREENSHOTS", tmp_path)) / f"{name}.png", selector)
    assert data.startswith(b"\x89PNG")
    assert 10_000 < len(data) < 400_000
