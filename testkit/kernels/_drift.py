"""``stub_drift``: is a stub still what its class makes? What was given and never read, what a default hid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from testkit.errors import KernelsError
from testkit.kernels._fit import fit
from testkit.kernels._reads import Drift
from testkit.kernels._record import Record, made_at, plain, record_of

__tracebackhide__ = True  # pytest shows the line that asked, not ours


def stub_drift(*stubs: Any, runs: Sequence[str] | None = None) -> list[Drift]:
    """How ``stubs`` differ from what their classes make today; empty if they do not.

    Without ``runs`` it is judged by what was read of stubs of ``bare`` and ``namespace`` so far, those inside them
    included: attributes that were given and never read ("unread": stale or misspelt), and attributes that were not
    given though each real instance has them, where the code that asked went on with a default, or found the class's
    own value ("defaulted"). Call it at the end of a test.

    With ``runs``, the names of methods, nothing is run, so that no GPU is needed: the source of these methods and of
    what they call is compared with the stub. Found are also names that the class does not have ("unknown") and
    attributes that are read and not given ("missing"), nested ones too. Hand-made objects may be given as well.
    What only a branch, a loop, the body of a ``with``, or a generator or coroutine that these methods call reads is
    not counted as missing. ``runs=()`` compares the names alone.

    Raises ``KernelsError`` where there is nothing to judge: no stubs, one whose reads were not watched, a method that
    the class does not have or whose source is gone.
    """
    where = f"stub_drift, {made_at(1)}"
    if not stubs:
        raise KernelsError("no stub is given", where, "give what bare or namespace returned")
    if isinstance(runs, str):
        raise KernelsError(f"runs is {runs!r}", where, f'give a tuple: runs=("{runs}",)')
    found: list[Drift] = []
    for stub in stubs:
        record = record_of(stub)
        if runs is not None:
            found += fit(stub, runs, where)
        elif record is None:
            problem = f"nobody watched the reads of this {type(stub).__name__}"
            raise KernelsError(problem, where, 'make it with bare or namespace, or name methods: runs=("forward",)')
        else:
            found += _of_record(stub, record, where, set())
    return list(dict.fromkeys(found))


def _of_record(stub: object, record: Record, where: str, seen: set[int]) -> Iterator[Drift]:
    """The drift of a stub, and of the stubs that it was given."""
    seen.add(id(record))
    reads = record.reads
    if not reads.given and not record.touched:
        problem = f"the stub of {reads.owner} was given nothing, and nothing was read of it"
        raise KernelsError(problem, where, "use it first, or name the methods that will: runs=(...)")
    yield from reads.defaulted
    yield from reads.unread(lambda name: record.path(name)[1])
    for name in sorted(reads.given & reads.read):
        value = plain(stub, name)
        inner = record_of(value)
        if inner is not None and id(inner) not in seen:
            yield from _of_record(value, inner, where, seen)
