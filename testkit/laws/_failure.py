"""What a broken law says: a headline that stands alone, what was found, and one thing to do next."""

from __future__ import annotations

from testkit._evidence import Found
from testkit.errors import LawsError

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class LawBroken(Found, LawsError):
    """A system broke a law. ``evidence`` has what was found, one line each."""
