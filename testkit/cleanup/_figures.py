"""How many clean-ups ran and what they cost; added up over the workers of a distributed run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from testkit._text import counted
from testkit.cleanup import _steps
from testkit.cleanup._memory import shown


@dataclass
class Figures:
    """Clean-ups by what called for them (a scope, or ``cleanup_now``), seconds, failures and interrupts by step.

    ``seen`` counts what came by (``tests`` that ran, looks at a ``gpu``), ``leaks`` the bytes that modules left.
    """

    runs: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    interrupted: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    leaks: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    def clean(self, reason: str, steps: Sequence[_steps.Step]) -> list[_steps.Outcome]:
        """Run the steps and count that, also when Ctrl-C cuts it short."""
        outcomes: list[_steps.Outcome] = []
        try:
            return _steps.run(steps, outcomes)
        finally:
            self.add(reason, outcomes)

    def add(self, reason: str, outcomes: Sequence[_steps.Outcome]) -> None:
        """Count one clean-up."""
        self.runs[reason] = self.runs.get(reason, 0) + 1
        for outcome in outcomes:
            name = outcome.step.name
            self.seconds[name] = self.seconds.get(name, 0.0) + outcome.seconds
            if outcome.error:
                self.failed[name] = self.failed.get(name, 0) + 1
            if outcome.interrupted:
                self.interrupted[name] = self.interrupted.get(name, 0) + 1

    def see(self, what: str) -> None:
        """Count one of what came by."""
        self.seen[what] = self.seen.get(what, 0) + 1

    def plain(self) -> dict[str, dict[str, Any]]:
        """These figures in types that travel between processes."""
        return asdict(self)

    def merge(self, plain: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what another process counted."""
        for kind, numbers in plain.items():
            mine = getattr(self, kind)
            for name, number in numbers.items():
                mine[name] = mine.get(name, 0) + number

    def lines(self) -> list[str]:
        """What the run's reader should know; no line if nothing ran."""
        lines = self._lines_of_runs()
        for module, left in self.leaks.items():
            lines.append(f"cleanup: {module} left {shown(left)} of GPU memory allocated")
        return lines + [f"cleanup: {note}" for note in self.notes]

    def whole(self, scope: str, memory: int | None, leaks: bool) -> list[str]:
        """The lines of a run that asked for clean-ups, also if there were none, and why."""
        lines = self.lines()
        tests, gpu = self.seen.get("tests", 0), self.seen.get("gpu", 0)
        if not self.runs:
            why = "no test asked for one"
            if not tests:
                why = "no test ran"
            elif memory is not None:
                why = f"GPU memory stayed below {shown(memory)}" if gpu else "no test used a GPU through torch"
            lines.insert(0, f"cleanup: no clean-up ({scope}), since {why}")
        if leaks and tests and not gpu:
            lines.append("cleanup: no test used a GPU through torch, so cleanup_leaks had nothing to measure")
        return lines

    def _lines_of_runs(self) -> list[str]:
        total = sum(self.runs.values())
        if not total:
            return []
        if len(self.runs) == 1:
            reasons = next(iter(self.runs))
        else:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.runs.items())
        costs = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        spent = sum(self.seconds.values())
        lines = [f"cleanup: {counted(total, 'clean-up')} ({reasons}) in {spent:.2f} s: {costs}"]
        for what, steps in (("failed", self.failed), ("was interrupted", self.interrupted)):
            for name, number in steps.items():
                lines.append(f"cleanup: step {name} {what} in {number:,} of {counted(total, 'clean-up')}")
        return lines
