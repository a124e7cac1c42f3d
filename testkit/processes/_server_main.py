"""What runs a function as a server: a script for a fresh interpreter, which is told everything on its standard input.

A script, not ``-c``, which would look for modules in the working directory first. Until ``sys.path`` is the one of the
process that started us, only the standard library is imported.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import sys
from typing import Any


def main() -> None:
    """Read the path, what the function is given and the function; call it. What it raises goes to the log."""
    path, given, data = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    del sys.argv[1:]
    faulthandler.enable()
    if "sock" in given:
        os.set_inheritable(given["sock"], False)  # as any socket of Python's is
        given["sock"] = socket.socket(fileno=given["sock"])
    function: Any = pickle.loads(data)
    function(**given)


if __name__ == "__main__":  # a process that multiprocessing spawns from the server imports this file again
    main()
