"""Every failure of ours is a value: a problem, where it came from, and one thing to do next."""

from __future__ import annotations


class KitError(Exception):
    """A clear refusal.

    ``problem`` says what is wrong, with the value; ``where`` says where that value came from (a marker, an
    option, an ini key, an argument); ``fix`` is one action. ``str()`` gives two lines::

        pairwise: strength 4 (from the marker) exceeds the 3 axes of test_forward
        next: use 1 to 3, or remove the marker to run all 96 cases
    """

    capability = "testkit"

    def __init__(self, problem: str, where: str = "", fix: str = "") -> None:
        super().__init__(problem, where, fix)
        self.problem = problem
        self.where = where
        self.fix = fix

    @property
    def headline(self) -> str:
        """The first line; it stands alone in pytest's summary."""
        origin = f" ({self.where})" if self.where else ""
        return f"{self.capability}: {self.problem}{origin}"

    def __str__(self) -> str:
        return f"{self.headline}\nnext: {self.fix}" if self.fix else self.headline


class PairwiseError(KitError):
    """A model, predicate or argument that ``testkit.pairwise`` cannot use."""

    capability = "pairwise"


class CleanupError(KitError):
    """A clean-up step or setting that ``testkit.cleanup`` cannot use."""

    capability = "cleanup"


class ProcessesError(KitError):
    """A process or setting that ``testkit.processes`` cannot use."""

    capability = "processes"


class GpusError(KitError):
    """A marker or argument that ``testkit.gpus`` cannot use."""

    capability = "gpus"


class TimingError(KitError):
    """A run file, foreign report or setting that ``testkit.timing`` cannot use."""

    capability = "timing"


class KernelsError(KitError):
    """A stub, tolerance or argument that ``testkit.kernels`` cannot use."""

    capability = "kernels"


class SyncsError(KitError):
    """A host wait where none is allowed, or an argument that ``testkit.syncs`` cannot use."""

    capability = "syncs"


class LawsError(KitError):
    """A system, schedule or argument that ``testkit.laws`` cannot judge."""

    capability = "laws"


class MachineError(KitError):
    """A requirement, snapshot or setting that ``testkit.environment`` cannot use."""

    capability = "environment"


class MatrixError(KitError):
    """A job matrix, recipe or setting that ``testkit.matrix`` cannot use."""

    capability = "matrix"


class KitWarning(UserWarning):
    """Something that a run survives and its reader should know."""
