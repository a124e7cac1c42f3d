"""Sizes at which index arithmetic breaks: around powers of two, and around multiples of a tile."""

from __future__ import annotations

from collections.abc import Iterable

from testkit.errors import KernelsError


def sizes_around_powers_of_two(lo: int, hi: int, *, tiles: int | Iterable[int] = ()) -> list[int]:
    """2**k - 1, 2**k and 2**k + 1 for every k, as far as they lie from ``lo`` to ``hi``, both included; ascending.

    ``tiles``: sizes of a kernel's tiles. For each one also its first, second and last multiple in that range, with
    -1, 0, +1 and half a tile added: the remainders at which a last tile is full, empty, or partly used.
    Raises ``KernelsError`` if the range holds none of them, or is none.
    """
    steps = [tiles] if isinstance(tiles, int) else list(tiles)
    for name, value, least in (("lo", lo, 0), ("hi", hi, 0), *(("tile", tile, 1) for tile in steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            fix = f"give a whole number from {least} up"
            raise KernelsError(f"{name} is {value!r}", "argument of sizes_around_powers_of_two", fix)
    centres = [(2**k, 0) for k in range(hi.bit_length() + 1)]
    for tile in steps:
        first = max(1, -(-lo // tile))
        centres += [(multiple * tile, tile // 2) for multiple in (first, first + 1, hi // tile)]
    around = {centre + by for centre, half in centres for by in (-1, 0, 1, half)}
    sizes = sorted(size for size in around if lo <= size <= hi)
    if not sizes:
        text = f"no size from {lo} to {hi} is next to a power of two or a tile's multiple"
        raise KernelsError(text, "arguments of sizes_around_powers_of_two", "give a wider range")
    return sizes
