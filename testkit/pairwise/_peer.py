"""allpairspy as an engine, for people who come from it. What it returns is checked and completed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from testkit.pairwise._model import Model, Row


def allpairspy_rows(model: Model) -> list[Row]:
    """The rows that allpairspy gives for this model: perhaps incomplete, perhaps not all allowed."""
    from allpairspy import AllPairs

    if len(model.levels) < 2 or model.strength < 2:
        return []

    def fits(prefix: Sequence[int]) -> bool:
        return all(
            rule.allows(tuple([prefix[axis] for axis in rule.scope]))
            for rule in model.space.rules
            if rule.scope[-1] < len(prefix)
        )

    values = [list(range(n)) for n in model.levels]
    return [list(row) for row in AllPairs(values, filter_func=fits, n=model.strength)]
