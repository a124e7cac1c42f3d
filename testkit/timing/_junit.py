"""JUnit XML, in and out: one test for each id, whatever characters and however many entries it comes with.

There is no one JUnit format. Read are pytest's (``junit_family`` xunit1 and xunit2), gotestsum's, nextest's and what
looks like them; written is the dialect of pytest, which Jenkins' ``junit-10.xsd`` describes.
"""

from __future__ import annotations

import codecs
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeAlias
from xml.sax.saxutils import quoteattr

from testkit._text import counted
from testkit.errors import TimingError
from testkit.timing._run import MAIN, Header, Joined, Run, Timed, Worker, joined, split_id

Family: TypeAlias = Literal["xunit1", "xunit2"]

CHUNK = 1 << 16
SHORT = 200
RESULTS = {"failure", "error", "skipped", "flakyFailure", "flakyError", "rerunFailure", "rerunError"}

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REFERENCE = re.compile(r"&#(?:x([0-9a-fA-F]{1,8})|([0-9]{1,10}));")
_ENCODING = re.compile(rb"""^<\?xml[^>]{1,100}encoding=["']([A-Za-z0-9._-]+)["']""")
_PHASE = re.compile(r"(?:failed (?:on|in)|test) (setup|call|teardown)( and teardown)?\b")


def visible(text: str) -> str:
    r"""``text`` with what XML 1.0 forbids written out, as ``\x1b``, ``\ufffe``, ``\ud800``."""
    return _FORBIDDEN.sub(lambda found: _written_out(ord(found[0])), text)


def _written_out(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(slots=True)
class _Entry:
    """One ``testcase`` element with the names and attributes of its results."""

    attributes: dict[str, str]
    suite: dict[str, str]
    results: list[tuple[str, dict[str, str]]] = field(default_factory=list)


class _Entries:
    """Collects the entries while expat parses. It has no ``data`` method: output of any size is passed over unkept."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.root: tuple[str, dict[str, str]] | None = None
        self.suites: list[dict[str, str]] = []
        self.first_suite: dict[str, str] = {}
        self._open: _Entry | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.rpartition("}")[2]
        self.root = self.root or (tag, attributes)
        if tag == "testsuite":
            self.suites.append(attributes)
            self.first_suite = self.first_suite or attributes
        elif tag == "testcase":
            self._open = _Entry(attributes, self.suites[-1] if self.suites else {})
            self.entries.append(self._open)
        elif tag in RESULTS and self._open is not None:
            # A message may be as long as an output; how it begins is enough.
            kept = {key: value[:SHORT] for key, value in attributes.items() if key in ("message", "time", "type")}
            self._open.results.append((tag, kept))

    def end(self, tag: str) -> None:
        tag = tag.rpartition("}")[2]
        if tag == "testcase":
            self._open = None
        elif tag == "testsuite":
            self.suites.pop()

    def close(self) -> None:
        """What expat calls at the end."""


def read_junit(path: Path) -> Run:
    """The tests of a JUnit file; memory does not grow with the output that it holds.

    Of several entries with one id, a call's failure and the failing teardown that follows are one attempt, others are
    attempts of which the last counts. Where there are no start times, tests are laid end to end. Raises TimingError
    for what is not well-formed, is other XML, or holds no test.
    """
    found = _Entries()
    parser = ET.XMLParser(target=found)
    text = _Legal(path)
    try:
        for part in text:
            parser.feed(part)
        parser.close()
    except (ET.ParseError, UnicodeError) as error:
        raise TimingError(
            f"{path} is not well-formed XML: {error}", fix="take the file from where it was written, it may be cut"
        ) from error
    tag, attributes = found.root or ("", {})
    if tag not in ("testsuites", "testsuite"):
        raise TimingError(f"{path} is XML with the root <{tag}>, not a JUnit report")
    if not found.entries:
        raise TimingError(f"{path} is a JUnit report without a test", fix="look whether the run that wrote it broke")
    stamps = [stamp for entry in found.entries if (stamp := _epoch(entry.attributes)) is not None]
    started = _epoch(found.first_suite) or _epoch(attributes) or min(stamps, default=path.stat().st_mtime)
    header = Header.imported(path, "junit", started)
    header.host = found.first_suite.get("hostname", "")
    run = Run(header, {MAIN: Worker(MAIN, header.host)}, complete=True, path=str(path))
    if text.replaced:
        run.notes.append(f"{counted(text.replaced, 'character')} that XML forbids written out")
    _fill(run, found.entries, python=attributes.get("name") == "pytest tests")
    return run


class _Legal:
    """A file's text in parts, with what XML forbids written out and counted in ``replaced``."""

    def __init__(self, path: Path) -> None:
        self.path, self.replaced = path, 0

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            start = file.read(200).lstrip()
            file.seek(0)
            decode = self._decoder(start).decode
            rest, first = "", True
            while raw := file.read(CHUNK):
                text = rest + (decode(raw).lstrip() if first else decode(raw))
                first = False
                # A reference may go on in the next part.
                at = text.rfind("&", max(0, len(text) - 16))
                at = len(text) if at < 0 or ";" in text[at:] else at
                text, rest = text[:at], text[at:]
                yield self._legal(text)
            yield self._legal(rest + decode(b"", final=True))

    def _decoder(self, start: bytes) -> codecs.IncrementalDecoder:
        for mark, name in ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, ""), (codecs.BOM_UTF16_BE, "")):
            if start.startswith(mark):
                return codecs.getincrementaldecoder(name or "utf-16")("surrogateescape" if name else "replace")
        named = _ENCODING.match(start)
        name = named[1].decode() if named else "utf-8"
        try:
            # Bytes that are no text become lone surrogates, which are then counted with the rest.
            return codecs.getincrementaldecoder(name)("surrogateescape")
        except LookupError as error:
            raise TimingError(f"{self.path} says that it is in {name}, which is no known encoding") from error

    def _legal(self, text: str) -> str:
        return _REFERENCE.sub(self._reference, _FORBIDDEN.sub(self._character, text))

    def _character(self, found: re.Match[str]) -> str:
        self.replaced += 1
        code = ord(found[0])
        return _written_out(code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code)

    def _reference(self, found: re.Match[str]) -> str:
        code = int(found[1], 16) if found[1] else int(found[2])
        if code <= 0x10FFFF and not _FORBIDDEN.match(chr(code)):
            return found[0]
        self.replaced += 1
        return _written_out(code)


def _fill(run: Run, entries: Iterable[_Entry], *, python: bool) -> None:
    """Turn entries into tests, those with one id into attempts at one test."""
    groups: dict[str, list[_Entry]] = {}
    for entry in entries:
        groups.setdefault(_node_id(entry, python), []).append(entry)
    clock, guessed, bad, several = 0.0, 0, 0, 0
    for nodeid, group in groups.items():
        attempts: list[Timed] = []
        for entry in group:
            guessed += python and not _file(entry)
            seconds = _seconds(entry.attributes)
            bad += seconds is None
            stamp = _epoch(entry.attributes)
            start = clock if stamp is None else stamp - run.header.started
            clock += seconds or 0.0
            _add_entry(attempts, nodeid, entry, start, seconds or 0.0)
        for number, timed in enumerate(attempts, 1):
            timed.attempt = number
            if number < len(attempts):
                timed.phases = _repeated(timed.phases)
        several += len(attempts) > 1
        run.tests += attempts
    if guessed:
        run.notes.append("xunit2 names no files: they are guessed from the class names")
    if bad:
        run.notes.append(f"{counted(bad, 'entry', 'entries')} without a usable time count as 0 s")
    if several:
        run.notes.append(f"{counted(several, 'test')} with several attempts: the last one counts")


def _add_entry(attempts: list[Timed], nodeid: str, entry: _Entry, start: float, seconds: float) -> None:
    phases = _phases(entry.results)
    teardown_only = phases == "ppf" and all(tag == "error" for tag, _ in entry.results)
    if teardown_only and attempts and attempts[-1].phases == "pfp":
        attempts[-1].phases = "pff"
        attempts[-1].teardown += seconds
        return
    again = [(tag, attributes) for tag, attributes in entry.results if tag.startswith(("flaky", "rerun"))]
    repeats = [
        Timed(nodeid, start=start, call=_seconds(attributes) or 0.0, phases="pfp" if tag.endswith("Failure") else "f--")
        for tag, attributes in again
    ]
    timed = Timed(nodeid, start=start, call=seconds, phases=phases)
    # What passed in the end is the entry itself; of what failed for good the entry is the first attempt.
    first = any(tag.startswith("rerun") for tag, _ in again)
    attempts += [timed, *repeats] if first else [*repeats, timed]


def _phases(results: Sequence[tuple[str, dict[str, str]]]) -> str:
    """The letters of ``Timed.phases``. Only pytest says in which phase an error was; elsewhere it is set-up."""
    setup, call, teardown = "p", "p", "p"
    for tag, attributes in results:
        said = _PHASE.match(attributes.get("message", ""))
        if tag == "failure":
            call = "f"
            teardown = "f" if said and said[2] else teardown
        elif tag == "error" and said and said[1] == "teardown":
            teardown = "f"
        elif tag == "error":
            setup, call = "f", "-"
            teardown = "f" if said and said[2] else "p" if said else "-"
        elif tag == "skipped":
            call = "x" if attributes.get("type") == "pytest.xfail" else "s"
    return setup + call + teardown


def _repeated(phases: str) -> str:
    """An attempt that another one followed; JUnit does not always say what was wrong with it."""
    return phases.replace("f", "r") if "f" in phases else phases[0] + "r" + phases[2]


def _node_id(entry: _Entry, python: bool) -> str:
    file, name, classname = _file(entry), entry.attributes.get("name", ""), entry.attributes.get("classname", "")
    if file and not classname and name == file:
        return file
    if file and (classname == _dotted(file) or classname.startswith(_dotted(file) + ".")):
        classes = classname[len(_dotted(file)) + 1 :].split(".")
        return "::".join([file, *filter(None, classes), name])
    if python or entry.suite.get("name") == "pytest":
        # An inherited test has the file of its base class; a pytest of another family names no file.
        parts = classname.split(".")
        end = len(parts)
        while end > 1 and parts[end - 1][:1].isupper():
            end -= 1
        return "::".join(["/".join(parts[:end]) + ".py", *parts[end:], name]) if classname else name
    return "::".join(filter(None, [file, classname or entry.suite.get("name", ""), name]))


def _file(entry: _Entry) -> str:
    return (entry.attributes.get("file") or entry.suite.get("file", "")).replace("\\", "/")


def _dotted(file: str) -> str:
    """The class name that pytest writes for a file."""
    return re.sub(r"\.py$", "", file).replace("/", ".")


def _seconds(attributes: dict[str, str]) -> float | None:
    with suppress(KeyError, ValueError):
        seconds = float(attributes["time"].replace(",", ""))
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _epoch(attributes: dict[str, str]) -> float | None:
    """A ``timestamp`` in seconds since 1970; gotestsum writes the year 1 where it has none."""
    with suppress(KeyError, ValueError, OverflowError, OSError):
        seconds = datetime.fromisoformat(re.sub(r"Z$", "+00:00", attributes["timestamp"])).timestamp()
        return seconds if seconds > 0 else None
    return None


def to_junit(runs: Sequence[Run], family: Family = "xunit1") -> str:
    """A JUnit report of one CI run, one ``testsuite`` for each file and one ``testcase`` for each test.

    ``xunit1`` has the file on each test as well, which CircleCI reads; ``xunit2`` keeps to ``junit-10.xsd``, where
    only suites have one. A test that passed after attempts that did not is a pass with ``flakyFailure`` elements.
    """
    names = sorted({run.header.run for run in runs})
    if len(names) > 1:
        raise TimingError(f"a JUnit report is of one run, these are {len(names)}: {', '.join(names[:5])}")
    files: dict[str, list[Joined]] = {}
    for nodeid, test in joined(runs).items():
        files.setdefault(split_id(nodeid)[0], []).append(test)
    started = min(run.header.started for run in runs)
    stamp = datetime.fromtimestamp(started, tz=timezone.utc).isoformat()
    every = [test for tests in files.values() for test in tests]
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites{_attributes(name=names[0], **_sums(every))}>"]
    for file, tests in files.items():
        sums = _sums(tests) | {"skipped": str(sum(test.final.outcome in ("skipped", "xfailed") for test in tests))}
        hosts = {run.header.host for run in runs} - {""}
        place = {"hostname": hosts.pop()} if len(hosts) == 1 else {}
        lines.append(f"<testsuite{_attributes(name=file, **sums, timestamp=stamp, **place, file=file)}>")
        lines += [_case(test, family) for test in tests]
        lines.append("</testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _sums(tests: Sequence[Joined]) -> dict[str, str]:
    outcomes = [test.final.outcome for test in tests]
    failures, errors = outcomes.count("failed") + outcomes.count("rerun"), outcomes.count("error")
    seconds = sum(test.final.seconds for test in tests)
    return {"tests": str(len(tests)), "failures": str(failures), "errors": str(errors), "time": f"{seconds:.3f}"}


def _case(test: Joined, family: Family) -> str:
    nodeid = test.final.id
    file, name, params = split_id(nodeid)
    if name is None:
        attributes = {"classname": "", "name": nodeid}
    else:
        *classes, function = name.split("::")
        attributes = {
            "classname": ".".join([_dotted(file), *classes]),
            "name": function if params is None else f"{function}[{params}]",
        }
    if family == "xunit1":
        attributes["file"] = file
    attributes["time"] = f"{test.final.seconds:.6f}"
    return f"<testcase{_attributes(**attributes)}>{''.join(_results(test))}</testcase>"


def _results(test: Joined) -> Iterator[str]:
    outcome, where = test.final.outcome, " and ".join(test.final.failed_in)
    if outcome in ("failed", "rerun"):
        yield f"<failure{_attributes(message=f'failed in {where}')}/>"
    elif outcome == "error":
        yield f"<error{_attributes(message=f'failed in {where}' if where else 'did not end')}/>"
    elif outcome in ("skipped", "xfailed"):
        yield f"<skipped{_attributes(type='pytest.skip' if outcome == 'skipped' else 'pytest.xfail')}/>"
    elif test.verdict == "flaky":
        for timed in test.attempts[:-1]:
            message = f"attempt {timed.attempt}: failed in {' and '.join(timed.failed_in)}"
            yield f"<flakyFailure{_attributes(message=message, type='rerun')}/>"


def _attributes(**values: str) -> str:
    return "".join(f" {name}={quoteattr(visible(value))}" for name, value in values.items())
