"""Sizes in settings: what is read, and what is refused with its value and source."""

from __future__ import annotations

from typing import Any

import pytest

from testkit import _settings
from testkit.errors import CleanupError

parse = _settings.size(CleanupError)


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        ("2GiB", 2 * 1024**3),
        ("500 MiB", 500 * 1024**2),
        (" 1.5GB\n", 1_500_000_000),
        ("4096", 4096),
        ("0", 0),
        ("7 B", 7),
        ("1KiB", 1024),
        ("3 kB", 3000),
        ("0.5tib", 512 * 1024**3),
        ("1 TB", 1000**4),
        ("0.1GiB", 107374182),
        ("4.35kB", 4350),
        (80 * 1024**3, 80 * 1024**3),
    ],
)
def test_a_size_is_read_as_whole_bytes(raw: Any, number: int) -> None:
    assert parse(raw, "from ini cleanup_when_gpu_memory") == number


@pytest.mark.parametrize(
    ("raw", "problem", "fix"),
    [
        ("-1GiB", "is not a size", "give a size such as 2GiB"),
        (-1, "is not a size", "give a size such as 2GiB"),
        ("nan", "is not a size", "give a size such as 2GiB"),
        ("inf", "is not a size", "give a size such as 2GiB"),
        ("1e9", "is not a size", "give a size such as 2GiB"),
        ("1,5GB", "is not a size", "give a size such as 2GiB"),
        ("", "is not a size", "give a size such as 2GiB"),
        ("GiB", "is not a size", "give a size such as 2GiB"),
        ("2 Gi B", "is not a size", "give a size such as 2GiB"),
        ("\u0662GiB", "is not a size", "give a size such as 2GiB"),
        ("9" * 5000, "is not a size", "give a size such as 2GiB"),
        (True, "is not a size", "give a size such as 2GiB"),
        (1.5, "is not a size", "give a size such as 2GiB"),
        (None, "is not a size", "give a size such as 2GiB"),
        ("2G", "has the unknown unit 'G'", "use B, KiB, MiB"),
        ("2 GBit", "has the unknown unit 'GBit'", "use B, KiB, MiB"),
        ("1.5", "is a part of a byte", "give a unit too"),
        ("1.5B", "is a part of a byte", "give a unit too"),
    ],
)
def test_what_is_no_size_is_refused_with_its_value_and_source(raw: Any, problem: str, fix: str) -> None:
    with pytest.raises(CleanupError, match=r"^cleanup: .*\(from --gpus-memory\)\nnext: ") as caught:
        parse(raw, "from --gpus-memory")
    assert caught.value.problem == f"{raw!r} {problem}"
    assert caught.value.fix.startswith(fix)
