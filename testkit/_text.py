"""Plain text for people: counted nouns and aligned tables."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 case``, ``2,644 cases``."""
    word = noun if number == 1 else (plural or noun + "s")
    return f"{number:,} {word}"


def table(rows: Sequence[Sequence[object]], *, indent: str = "  ") -> list[str]:
    """Lines with aligned columns: numbers right, everything else left."""
    cells = [[f"{cell:,}" if type(cell) is int else str(cell) for cell in row] for row in rows]
    columns = max((len(row) for row in cells), default=0)
    widths = [max((len(row[c]) for row in cells if c < len(row)), default=0) for c in range(columns)]
    lines = []
    for source, row in zip(rows, cells, strict=True):
        parts = [
            text.rjust(widths[c]) if isinstance(source[c], (int, float)) else text.ljust(widths[c])
            for c, text in enumerate(row)
        ]
        lines.append((indent + "  ".join(parts)).rstrip())
    return lines
