"""Files into plain values: YAML by the rules of 1.2 (``on`` and ``no`` are words), TOML and JSON."""

from __future__ import annotations

import json
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from testkit.errors import KitWarning, MatrixError

__tracebackhide__ = True  # pytest shows the line that called us, not ours

EXTRA = "pip install kernel-testkit[matrix]"

# The core schema of YAML 1.2, chapter 10.3.2. Older readers also take 1_000 and 0b11 for numbers.
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LOSES_ITS_ZERO = re.compile(r"[-+]?[0-9]+\.[0-9]*0")


def read_file(path: Path) -> Any:
    """What the file at ``path`` holds, by its suffix: ``.yml``, ``.yaml``, ``.toml`` or ``.json``.

    Raises ``MatrixError`` for a file that cannot be read, and where the reader of its format is not installed.
    Warns with ``KitWarning`` of numbers in YAML that lose a zero, such as ``3.10``, which is 3.1.
    """
    readers = {".yml": _yaml, ".yaml": _yaml, ".toml": _toml, ".json": _json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise MatrixError(f"{path} is no {', '.join(readers)} file", fix="name one of these")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise MatrixError(f"cannot read {path}: {reason}", fix="name a file with a job matrix or a recipe") from error
    return reader(text, path)


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken("JSON", path, str(error)) from error


def _toml(text: str, path: Path) -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        toml = import_module(name)
    except ImportError as error:
        raise MatrixError(f"{path} is TOML, and {name} is not installed", fix=EXTRA) from error
    try:
        return toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise _broken("TOML", path, str(error)) from error


def _yaml(text: str, path: Path) -> Any:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.constructor import SafeConstructor
        from ruamel.yaml.error import YAMLError
    except ImportError as error:
        raise MatrixError(f"{path} is YAML, and ruamel.yaml is not installed", fix=EXTRA) from error

    class Constructor(SafeConstructor):
        """Its own, so that nobody else's reader changes."""

    def integer(self: Any, node: Any) -> Any:
        return self.construct_yaml_int(node) if _INT.fullmatch(node.value) else node.value

    def floating(self: Any, node: Any) -> Any:
        if not _FLOAT.fullmatch(node.value):
            return node.value
        value = self.construct_yaml_float(node)
        if _LOSES_ITS_ZERO.fullmatch(node.value):
            where = f"{path}, line {node.start_mark.line + 1}"
            said = f"matrix: {node.value} is the number {value:g} ({where})\nnext: quote it if it is a version"
            warnings.warn(said, KitWarning, stacklevel=2)
        return value

    Constructor.add_constructor("tag:yaml.org,2002:int", integer)
    Constructor.add_constructor("tag:yaml.org,2002:float", floating)
    Constructor.add_constructor("tag:yaml.org,2002:timestamp", lambda self, node: node.value)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    try:
        return yaml.load(text)
    except YAMLError as error:
        raise _broken("YAML", path, _in_short(error)) from error


def _in_short(error: Any) -> str:
    """The problem and its line, without ruamel's picture of the text around it."""
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or error}{where}"


def _broken(kind: str, path: Path, reason: str) -> MatrixError:
    return MatrixError(f"{path} is no valid {kind}: {' '.join(reason.split())}", fix="correct the file")
