"""Which cases to run: covering arrays over parametrize axes, their proof, and what a run really covered."""

from __future__ import annotations
