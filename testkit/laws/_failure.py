"""What a broken law says: a headline that stands alone, what was found, and one thing to do next."""

from __future__ import annotations

from collections.abc import Sequence

from testkit.errors import LawsError

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class LawBroken(LawsError, AssertionError):
    """A system broke a law. ``evidence`` has what was found, one line each."""

    def __init__(self, problem: str, evidence: Sequence[str], fix: str, where: str = "") -> None:
        super().__init__(problem, where, fix)
        self.evidence = tuple(evidence)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {line}" for line in self.evidence), f"next: {self.fix}"])
