"""Where a setting comes from: marker, command line, ini, default; and which of them spoke.

Pure bookkeeping over pytest's ``Config`` and ``Parser`` objects as they are handed in. Every setting reaches its
parser as text or lines, whichever way a version of pytest delivers it, so that one parser judges all sources.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from testkit.errors import KitError

T = TypeVar("T")

# IEC 80000-13 for powers of 1024, SI for powers of 1000. A bare K, M or G is either, so it is none of them.
_UNITS: dict[str, int] = {
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?\s*([a-zA-Z]*)")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A value and who set it, such as ``Setting(3, "from --pairwise-strength")``."""

    value: T
    source: str


def add_option(parser: Any, flag: str, *, ini: bool = True, ini_type: str = "string", **argparse_options: Any) -> None:
    """Add ``flag`` with default None, and its ini key (the option's name with underscores).

    An option or ini key that another plugin already has is a usage error that names both.
    """
    # The caller is the plugin that the user may leave out; an option's first word is not always its folder's name.
    plugin = sys._getframe(1).f_globals["__name__"]
    name = ini_name(flag)
    _refuse_if_taken(parser, flag, plugin)
    group = parser.getgroup("testkit")
    group.addoption(flag, dest=f"testkit_{name}", default=None, **argparse_options)
    if ini:
        add_ini(parser, name, f"default of {flag}", ini_type, plugin=plugin)


def add_ini(parser: Any, name: str, help: str, ini_type: str = "string", *, plugin: str = "") -> None:
    """Add an ini key. pytest would let it replace another plugin's key in silence, so that is a usage error here."""
    plugin = plugin or sys._getframe(1).f_globals["__name__"]
    if name in parser._inidict:
        raise _taken(f"ini key {name}", plugin, _owner(parser, name, plugin) or "another plugin")
    parser.addini(name, help, type=_any_scalar() if ini_type == "string" else ini_type, default=None)


def ini_name(flag: str) -> str:
    """``--pairwise-over`` -> ``pairwise_over``."""
    return flag.lstrip("-").replace("-", "_")


def resolve(config: Any, flag: str, parse: Callable[[Any, str], T], default: T, *, marker: Any = None) -> Setting[T]:
    """The setting's value by precedence. ``parse(raw, source)`` raises a KitError that names ``source``.

    An ini key that is there but empty counts as absent.
    """
    if marker is not None:
        return Setting(parse(marker, "from the marker"), "from the marker")
    name = ini_name(flag)
    given = config.getoption(f"testkit_{name}", None)
    if given is not None:
        return Setting(parse(given, f"from {flag}"), f"from {flag}")
    ini = read_ini(config, name)
    if ini:
        return Setting(parse(ini, f"from ini {name}"), f"from ini {name}")
    return Setting(default, "default")


def one_of(words: Sequence[str], error: type[KitError]) -> Callable[[str, str], str]:
    """A ``parse`` for ``resolve`` that takes these words alone and raises ``error`` for any other."""

    def parse(raw: str, source: str) -> str:
        if raw not in words:
            raise error(f"{raw!r} is not known", source, f"give one of {', '.join(words)}")
        return raw

    return parse


def size(error: type[KitError]) -> Callable[[Any, str], int]:
    """A ``parse`` for ``resolve`` that takes ``2GiB``, ``500 MiB``, ``1.5GB`` or ``4096`` and returns whole bytes.

    A marker may give a plain int of bytes. Units are B, KiB to TiB (1024) and kB to TB (1000), in any case.
    What falls between two bytes is rounded. Anything else raises ``error``.
    """

    def parse(raw: Any, source: str) -> int:
        text = str(raw).strip() if isinstance(raw, (str, int)) and not isinstance(raw, bool) else ""
        match = _SIZE.fullmatch(text)
        if match is None:
            raise error(f"{raw!r} is not a size", source, "give a size such as 2GiB, 500MiB or 4096 (bytes)")
        whole, part, unit = match.groups(default="")
        factor = _UNITS.get(unit.lower() or "b")
        if factor is None:
            raise error(f"{raw!r} has the unknown unit {unit!r}", source, "use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")
        if part and factor == 1:
            raise error(f"{raw!r} is a part of a byte", source, "give a unit too, such as 1.5GiB")
        parts: int = 10 ** len(part)
        return (int(whole + part) * factor + parts // 2) // parts  # not as a float, which is not exact from 8 PiB on

    return parse


def read_ini(config: Any, name: str) -> Any:
    """The ini key as text or as a list of lines; "" if it is absent or the option has none (``ini=False``)."""
    if name not in config._parser._inidict:
        return ""
    try:
        raw = config.getini(name)
    except TypeError as error:  # pytest 9.0 and 9.1 on a native TOML value of another type; 9.2 says UsageError itself
        import pytest

        raise pytest.UsageError(f"testkit: ini {name} must be written as text, in quotes ({error})") from error
    if raw is None:
        return ""
    if isinstance(raw, bool):
        return "true" if raw else "false"
    return raw if isinstance(raw, (str, list)) else str(raw)


def is_whole(config: Any) -> bool:
    """Is the run to collect all of the suite? Paths, a folder below the root and some options leave files out."""
    sources, source = config.ArgsSource, config.args_source
    below = source is sources.INVOCATION_DIR and config.invocation_params.dir != config.rootpath
    left_out = any(getattr(config.option, name, None) for name in ("lf", "ignore", "ignore_glob"))
    return source is not sources.ARGS and not below and not left_out


def _any_scalar() -> Any:
    """An ini type that takes ``key = 3`` and ``key = "3"`` in pytest 9's native TOML table.

    Text comes first: pytest turns what it reads as text into the first type that fits. Unions exist since 9.2;
    9.0 and 9.1 take quoted values only, and older versions hand over everything as text.
    """
    import pytest

    return str | int | float | bool if pytest.version_tuple[:2] >= (9, 2) else "string"


def _refuse_if_taken(parser: Any, flag: str, plugin: str) -> None:
    # pytest itself looks only into the option's own group; across groups argparse fails, later and obscurely.
    # `_anonymous` holds what was added without a group; only pytest 9 lists it among the groups.
    for group in [parser._anonymous, *parser._groups]:
        if any(flag in option.names() for option in group.options):
            raise _taken(f"option {flag}", plugin, _owner(parser, flag, plugin) or f"option group {group.name!r}")


def _owner(parser: Any, word: str, ours: str) -> str:
    """The plugin, not ours, whose ``pytest_addoption`` spells ``word`` out, or ""."""
    config = getattr(parser._processopt, "__self__", None)
    for name, plugin in config.pluginmanager.list_name_plugin() if config else ():
        code = getattr(getattr(plugin, "pytest_addoption", None), "__code__", None)
        if name != ours and code is not None and word in code.co_consts:
            return str(name)
    return ""


def _taken(what: str, plugin: str, owner: str) -> Exception:
    import pytest

    return pytest.UsageError(
        f"testkit: {what} of {plugin} is already taken by {owner}; leave ours out with -p no:{plugin}"
    )
