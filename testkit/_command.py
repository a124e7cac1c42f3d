"""What the commands of all capabilities do alike: refuse in two lines, and end quietly when nobody reads any more."""

from __future__ import annotations

import argparse
import os
import sys
from typing import ClassVar, NoReturn

from testkit.errors import KitError

REFUSED = 2


class Parser(argparse.ArgumentParser):
    """A parser, and parsers of its verbs, whose complaints are errors of the class ``refusal``."""

    refusal: ClassVar[type[KitError]] = KitError

    def error(self, message: str) -> NoReturn:
        raise self.refusal(message, "command line", f"see {self.prog} --help")


def discard_output() -> None:
    """Nothing more is written to standard output, nor tried at the interpreter's end: its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
