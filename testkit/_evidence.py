"""Errors with evidence between their headline and what to do next; a capability's own class gives them its word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testkit.errors import KitError

__tracebackhide__ = True  # pytest shows the line that called us, not ours


class Shown(KitError):
    """A refusal that shows something between its two lines: ``evidence``, text of any number of lines."""

    def __init__(self, problem: str, where: str = "", fix: str = "", evidence: str = "") -> None:
        super().__init__(problem, where, fix)
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.where, self.fix, self.evidence)

    def __str__(self) -> str:
        lines = [self.headline, self.evidence, f"next: {self.fix}" if self.fix else ""]
        return "\n".join(line for line in lines if line)


class Found(KitError, AssertionError):
    """A check that found something. ``evidence`` has it, one line each."""

    def __init__(self, problem: str, evidence: Sequence[str], fix: str, where: str = "") -> None:
        super().__init__(problem, where, fix)
        self.evidence = tuple(evidence)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.evidence, self.fix, self.where), vars(self)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {line}" for line in self.evidence), f"next: {self.fix}"])
