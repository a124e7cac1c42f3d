"""Values that a law compares and shows."""

from __future__ import annotations

from collections.abc import Sequence

from testkit.errors import LawsError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

SHOWN = 160
"""Characters of a value that are shown, unless its line says otherwise."""
BEFORE = 30
"""Characters before the first difference that stay when a long value is clipped."""


def same(one: object, other: object, where: str) -> bool:
    """``one == other``; raises ``LawsError`` if that is no yes or no, as with arrays."""
    try:
        return bool(one == other)
    except Exception as error:
        kinds = " and ".join(dict.fromkeys(type(value).__name__ for value in (one, other)))
        fix = "return what == compares as a whole: numbers, text, lists (tolist()), dictionaries"
        raise LawsError(f"{kinds} cannot be compared: {error}", where, fix) from error


def shown(value: object, limit: int = SHOWN) -> str:
    """The repr of ``value`` on one line, its middle left out beyond ``limit`` characters."""
    text = " ".join(repr(value).splitlines())
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def differing(one: object, other: object) -> tuple[str, str]:
    """Both, clipped alike around their first difference where they are long."""
    texts = [" ".join(repr(value).splitlines()) for value in (one, other)]
    if max(map(len, texts)) <= SHOWN:
        return texts[0], texts[1]
    at = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    begin = max(0, at - BEFORE)
    clipped = [("... " if begin else "") + text[begin:] for text in texts]
    return tuple(text if len(text) <= SHOWN else text[: SHOWN - 4] + " ..." for text in clipped)  # type: ignore[return-value]  # two


def ranges(numbers: Sequence[int], limit: int = 12) -> str:
    """``1, 2, 4-10``; a run of two stays two numbers, and beyond ``limit`` parts the rest is counted."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    more = f", ... ({len(numbers)} in all)" if len(parts) > limit else ""
    return ", ".join(parts[:limit]) + more
