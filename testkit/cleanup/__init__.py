"""When global state is torn down: once a test, a module or a session."""

from __future__ import annotations
