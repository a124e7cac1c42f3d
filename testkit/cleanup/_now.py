"""A clean-up at once, with the steps of the run it is called in."""

from __future__ import annotations

from collections.abc import Sequence

from testkit.cleanup import _steps
from testkit.cleanup._figures import Figures

_runs: list[tuple[Sequence[_steps.Step], Figures]] = []


def cleanup_now() -> None:
    """Run every clean-up step now: the configured ones; ``gc`` and ``torch`` where none are, or our plugin is left out.

    A test may call it in its body. What the test itself still holds stays alive. Raises CleanupError after
    the last step if one failed.
    """
    steps, figures = _runs[-1] if _runs else (_steps.DEFAULT, Figures())
    error = _steps.problem(figures.clean("cleanup_now", steps))
    if error:
        raise error


def begin(steps: Sequence[_steps.Step], figures: Figures) -> None:
    """From here on ``cleanup_now`` runs ``steps`` and counts in ``figures``. Runs may be nested."""
    _runs.append((steps, figures))


def end() -> None:
    """The innermost run is over."""
    _runs.pop()
