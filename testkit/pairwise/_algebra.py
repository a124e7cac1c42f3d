"""Covering arrays known from algebra, for models without constraints: often optimal, always quick.

Sources: K. A. Bush, Orthogonal arrays of index unity (Ann. Math. Stat. 23, 1952); H. F. MacNeish, Euler squares
(Ann. Math. 23, 1922) for products of orders; B. Stevens and E. Mendelsohn, New recursive methods for transversal
covers (J. Combin. Des. 7, 1999) for products of arrays; D. Kleitman and J. Spencer (Discrete Math. 6, 1973) for
two-valued axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, islice, product
from math import comb

from testkit.pairwise._model import Row


def algebraic(levels: Sequence[int], strength: int, below: int) -> list[Row] | None:
    """Complete rows of the smallest construction here with fewer than ``below`` rows; None if there is none."""
    axes, order = len(levels), max(2, *levels)
    build: Callable[[], list[Row]] | None = None
    if strength == 2 and order == 2:
        size = 4
        while comb(size - 1, (size + 1) // 2) < axes:
            size += 1
        if size < below:
            below, build = size, partial(_subsets, axes, size)
    while order**strength < below:
        size = order**strength
        parts = _prime_powers(order)
        if axes <= strength + 1:
            below, build = size, partial(_zero_sum, axes, order, strength)
        elif axes <= min(parts) + 1:
            below, build = size, partial(_orthogonal, axes, parts, strength)
        elif strength == 2 and len(parts) == 1:
            columns, blocks = order + 1, 0
            while columns < axes:
                columns, blocks, size = columns * order, blocks + 1, size + order * (order - 1)
            if size < below:
                below, build = size, partial(_blocks, axes, order, blocks)
        order += 1
    return _fitted(build(), levels) if build else None


def _fitted(rows: list[Row], levels: Sequence[int]) -> list[Row]:
    """Values beyond an axis's levels become levels in turn; rows that this makes equal are one."""
    for axis, n in enumerate(levels):
        spare = 0
        for row in rows:
            if row[axis] >= n:
                row[axis] = spare % n
                spare += 1
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _subsets(axes: int, size: int) -> list[Row]:
    """Kleitman-Spencer: a row of zeros, and each axis is one in another ceil(size/2) of the rest."""
    columns = [set(chosen) for chosen in islice(combinations(range(1, size), (size + 1) // 2), axes)]
    return [[int(row in column) for column in columns] for row in range(size)]


def _zero_sum(axes: int, order: int, strength: int) -> list[Row]:
    """All ``strength``-tuples, with one axis more that makes the sum zero."""
    return [[*row, -sum(row) % order][:axes] for row in product(range(order), repeat=strength)]


def _orthogonal(axes: int, parts: Sequence[int], strength: int) -> list[Row]:
    """Bush arrays of each prime power, multiplied: one row for each choice of a row in each."""
    arrays = [_bush(axes, q, strength) for q in parts]
    rows = []
    for chosen in product(*arrays):
        row = [0] * axes
        for part, q in zip(chosen, parts, strict=True):
            row = [value * q + digit for value, digit in zip(row, part, strict=True)]
        rows.append(row)
    return rows


def _bush(axes: int, q: int, strength: int) -> list[Row]:
    """Polynomials of degree below ``strength`` over GF(q), evaluated at each element and at infinity."""
    add, multiply = _field(q)
    rows = []
    for coefficients in product(range(q), repeat=strength):
        row = [coefficients[0]]
        for x in range(min(q, axes - 1)):
            value = 0
            for coefficient in coefficients:
                value = add[multiply[value][x]][coefficient]
            row.append(value)
        rows.append(row)
    return rows


def _blocks(axes: int, q: int, blocks: int) -> list[Row]:
    """Axes numbered (i, j1, .., jr): q*q rows that tell the i apart, then q*(q-1) rows for each j."""
    lines = _bush(q + 1, q, 2)
    numbers = list(islice(product(range(q + 1), *[range(1, q + 1)] * blocks), axes))
    rows = [[line[number[0]] for number in numbers] for line in lines]
    for block in range(1, blocks + 1):
        rows += [[line[number[block]] for number in numbers] for line in lines if line[0] != 0]
    return rows


def _prime_powers(order: int) -> list[int]:
    parts, factor = [], 2
    while order > 1:
        part = 1
        while order % factor == 0:
            part, order = part * factor, order // factor
        if part > 1:
            parts.append(part)
        factor += 1
    return parts


Table = list[list[int]]


def _field(q: int) -> tuple[Table, Table]:
    """Addition and multiplication of GF(q), q = p**e; elements are numbers whose base-p digits are coefficients."""
    p = next(f for f in range(2, q + 1) if q % f == 0)
    size = next(e for e in range(1, q + 1) if p**e == q)
    digits = [[value // p**i % p for i in range(size)] for value in range(q)]
    weights = [p**i for i in range(size)]
    add = [
        [sum(w * ((a + b) % p) for w, a, b in zip(weights, one, other, strict=True)) for other in digits]
        for one in digits
    ]
    powers = next(found for low in range(1, q) if (found := _powers(low, p, weights, add)))
    log = {value: exponent for exponent, value in enumerate(powers)}
    multiply = [[0] * q for _ in range(q)]
    for a in range(1, q):
        for b in range(1, q):
            multiply[a][b] = powers[(log[a] + log[b]) % (q - 1)]
    return add, multiply


def _powers(low: int, p: int, weights: Sequence[int], add: Table) -> list[int] | None:
    """Powers of the generator if x**e = ``low`` makes x one (for a prime field: if ``low`` is one), else None."""
    q = p * weights[-1]
    multiples = [0]
    for _ in range(p - 1):
        multiples.append(add[multiples[-1]][low])
    powers, value = [], 1
    for _ in range(q - 1):
        powers.append(value)
        if len(weights) == 1:
            value = value * low % p
        else:
            top, rest = divmod(value, weights[-1])
            value = add[rest * p][multiples[top]]
        if value == 1:
            break
    return powers if len(set(powers)) == q - 1 else None
