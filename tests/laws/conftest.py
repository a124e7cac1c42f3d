"""What tests of the laws share: draws of hypothesis that are the same in each run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings


@pytest.fixture
def same_draws() -> Iterator[None]:
    before = getattr(settings, "get_current_profile_name", lambda: "default")()  # not in the oldest that we support
    settings.register_profile("same draws", derandomize=True, database=None)
    settings.load_profile("same draws")
    yield
    settings.load_profile(before)
