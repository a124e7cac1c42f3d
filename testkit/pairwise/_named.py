"""Cases that the user asked for by node id: on the command line, or through ``--lf``, ``--ff`` and ``--sw``."""

from __future__ import annotations

import os
from typing import Any


class Named:
    """The bracketed parts of node ids, by file and function; built once a run from pytest's config."""

    def __init__(self, config: Any) -> None:
        self._cases: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        here = str(config.invocation_params.dir)
        for argument in config.args:
            self._add(here, str(argument))
        cache = getattr(config, "cache", None)
        if cache is not None and (config.getoption("lf", False) or config.getoption("failedfirst", False)):
            for nodeid in cache.get("cache/lastfailed", {}):
                self._add(str(config.rootpath), nodeid)
        if cache is not None and config.getoption("stepwise", False):
            last = cache.get("cache/stepwise", None)
            last = last.get("last_failed") if isinstance(last, dict) else last
            self._add(str(config.rootpath), str(last or ""))

    def _add(self, folder: str, text: str) -> None:
        function, bracket, rest = text.partition("[")
        path, *names = function.split("::")
        if bracket and names and rest.endswith("]"):
            file = os.path.realpath(os.path.join(folder, path))
            key = (file if os.path.exists(file) else "", tuple(names))  # "": a module's name, under --pyargs
            self._cases.setdefault(key, set()).add(rest[:-1])

    def of(self, definition: Any) -> set[str]:
        """The named cases of one function, as the text between the brackets."""
        if not self._cases:
            return set()
        names = tuple(definition.nodeid.split("::")[1:])
        file = os.path.realpath(str(definition.path))
        return self._cases.get((file, names), set()) | self._cases.get(("", names), set())
