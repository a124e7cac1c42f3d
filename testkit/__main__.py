"""The console script: ``testkit <capability> ...`` runs that capability's ``cli.py`` and does nothing more."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence

import testkit
from testkit._command import REFUSED
from testkit.errors import KitError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one capability's command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    word = arguments[0] if arguments else ""
    commands = capabilities_with_a_command()
    if word == "--version":
        print(f"testkit {testkit.__version__}")
        return 0
    if word in ("-h", "--help"):
        print(f"usage: testkit <capability> ...\n{_available(commands)}")
        return 0
    try:
        if word not in commands:
            problem = f"unknown capability {word!r}" if word else "no capability named"
            raise KitError(problem, fix=_available(commands))
        command = importlib.import_module(f"testkit.{word}.cli")
        return int(command.main(arguments[1:]))
    except KitError as error:
        print(error, file=sys.stderr)
        return REFUSED


def capabilities_with_a_command() -> list[str]:
    """The folders under testkit/ that hold a cli.py; looked up anew, so that there is no list to keep."""
    folders = [module.name for module in pkgutil.iter_modules(testkit.__path__) if module.ispkg]
    return sorted(name for name in folders if importlib.util.find_spec(f"testkit.{name}.cli"))


def _available(commands: Sequence[str]) -> str:
    if not commands:
        return "use pytest; no capability has a command yet"
    return f"name one of: {', '.join(commands)}"


if __name__ == "__main__":
    sys.exit(main())
