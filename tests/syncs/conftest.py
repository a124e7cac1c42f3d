"""Each test here begins and ends with nothing armed: what one leaves open would speak in all that follow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from testkit.syncs import _arming, _copies, _region


@pytest.fixture(autouse=True)
def nothing_is_left_armed() -> Iterator[None]:
    listener = getattr(warnings, _arming._MUTATED)
    yield
    assert _arming._regions == 0
    assert _copies._users == 0
    assert not _region.watched()
    assert getattr(warnings, _arming._MUTATED) is listener
