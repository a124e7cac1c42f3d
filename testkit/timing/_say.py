"""Seconds, shares, sizes and names of tests as reports show them."""

from __future__ import annotations

LONG = 200
"""Characters of a name that are shown; of a longer one the beginning and the end."""


def spent(seconds: float) -> str:
    """Three digits and a unit: ``350 ms``, ``4.21 s``, ``42.1 s``, ``12 min 03 s``, ``1 h 02 min``."""
    if seconds <= 0:
        return "0 s"
    for limit, factor, digits, unit in _SCALES:
        if seconds < limit:
            return f"{seconds * factor:.{digits}f} {unit}"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60:02} min"


# Limits lie where rounding would show the next unit's number.
_SCALES = (
    (0.0009995, 1e6, 0, "µs"),
    (0.00995, 1e3, 1, "ms"),
    (0.9995, 1e3, 0, "ms"),
    (9.995, 1, 2, "s"),
    (59.95, 1, 1, "s"),
)


def percent(part: float, whole: float) -> str:
    """``31 %``; what is there is never ``0 %``, and what is missing never ``100 %``."""
    share = part / whole if whole > 0 else 0.0
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 <= share < 1 - 1e-9:
        return ">99 %"
    return f"{100 * share:.0f} %"


def size(count: int) -> str:
    """``512 MiB``, ``1.5 GiB``; empty for what was not measured."""
    if not count:
        return ""
    mebibytes = count / (1 << 20)
    return f"{mebibytes:,.0f} MiB" if mebibytes < 1023.5 else f"{mebibytes / 1024:,.1f} GiB"


def shown(text: str, limit: int = LONG) -> str:
    r"""One line of at most ``limit`` characters; those that print nothing are written out, as ``\n``, ``\x1b``.

    A node id may hold what clears a terminal, reverses the text after it, or fits in no encoding.
    """
    if len(text) > limit:
        text = f"{text[: limit * 2 // 3]}…{text[-(limit // 3 - 1) :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
