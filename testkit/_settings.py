"""Where a setting comes from: marker, command line, ini, default; and which of them spoke.

Pure bookkeeping over pytest's ``Config`` and ``Parser`` objects as they are handed in; pytest is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A value and who set it, such as ``Setting(3, "from --pairwise-strength")``."""

    value: T
    source: str


def add_option(parser: Any, flag: str, *, ini: bool = True, ini_type: str = "string", **argparse_options: Any) -> None:
    """Add ``flag`` with default None, and its ini key (the option's name with underscores).

    The ini key is always read as text (or lines), so that one parser of ours judges both sources. An option
    that another plugin already has is a usage error that names both.
    """
    name = ini_name(flag)
    group = parser.getgroup("testkit")
    try:
        group.addoption(flag, dest=f"testkit_{name}", default=None, **argparse_options)
    except ValueError as error:
        raise _taken(flag) from error
    if ini:
        parser.addini(name, f"default of {flag}", type=ini_type, default=None)


def ini_name(flag: str) -> str:
    """``--pairwise-over`` -> ``pairwise_over``."""
    return flag.lstrip("-").replace("-", "_")


def resolve(
    config: Any, flag: str, parse: Callable[[Any, str], T], default: T, *, marker: Any = None
) -> Setting[T]:
    """The setting's value by precedence. ``parse(raw, source)`` raises a KitError that names ``source``."""
    if marker is not None:
        return Setting(parse(marker, "from the marker"), "from the marker")
    name = ini_name(flag)
    given = config.getoption(f"testkit_{name}", None)
    if given is not None:
        return Setting(parse(given, f"from {flag}"), f"from {flag}")
    ini = config.getini(name)
    if ini not in (None, "", []):
        return Setting(parse(ini, f"from ini {name}"), f"from ini {name}")
    return Setting(default, "default")


def _taken(flag: str) -> Exception:
    from pytest import UsageError

    return UsageError(
        f"testkit: another plugin already has the option {flag}; "
        f"leave ours out with -p no:testkit.{ini_name(flag).split('_')[0]}.plugin"
    )
