"""Reads ``[tool.streamrace]`` of a ``pyproject.toml``: the defaults of a command's options.

Keys are the options' own names. Those of the table itself are for ``check``; every command has a table of its own,
``[tool.streamrace.fuzz]``, and so has ``check``, which overrides the former. The command line overrides both.

The file is searched from the working folder upward, where other paths of a command begin too: the nearest
``pyproject.toml`` with the table, no further up than the top of the checkout. Its paths are relative to its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from streamrace.device.scripts import WrongUse
from streamrace.process.lifetime import BY_ITSELF
from streamrace.repro.commands.table import COMMANDS, STREAMRACE
from streamrace.trace.untrusted import Unreadable, read_toml, shortened

(VARIABLE,) = BY_ITSELF  # the file to read instead; empty: none

_TABLE = "tool.streamrace"
_MAIN = "check"
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def defaults(command: str, start: Path) -> dict[str, Any]:
    """Return the defaults of ``command``'s options in the form of click. Raises :class:`WrongUse`."""
    file = _file(start)
    if file is None or command not in COMMANDS or COMMANDS[command].plain:
        return {}
    table = _table(file)
    # Some names are a command and an option (report, dry): a table is the command's.
    inner = {name: value for name, value in table.items() if name in COMMANDS and isinstance(value, dict)}
    options = _options(_MAIN)
    for name in table:
        if name in COMMANDS and COMMANDS[name].plain and name not in options:
            raise WrongUse(f"{file}: streamrace {name} takes no options from [{_TABLE}]: it has to run without click")
        if name not in COMMANDS and name not in options:
            raise WrongUse(f"{file}: [{_TABLE}] has '{shortened(name)}', {_near(name, (*options, *COMMANDS))}")
        if name not in inner and name not in options:
            raise WrongUse(f"{file}: [{_TABLE}] '{name}' is a command, whose options are a table: [{_TABLE}.{name}]")
    values: dict[str, Any] = {}
    if command == _MAIN:
        values |= _values(file, _TABLE, command, {name: value for name, value in table.items() if name not in inner})
    return values | _values(file, f"{_TABLE}.{command}", command, inner.get(command, {}))


def _file(start: Path) -> Path | None:
    setting = os.environ.get(VARIABLE)
    if setting is not None:
        if setting and not Path(setting).is_file():
            raise WrongUse(f"{VARIABLE} names {setting}, which does not exist")
        return Path(setting) if setting else None
    for folder in (start.absolute(), *start.absolute().parents):
        file = folder / "pyproject.toml"
        if file.is_file() and _table(file):
            return file
        if (folder / ".git").exists():
            return None
    return None


def _table(file: Path) -> Mapping[str, Any]:
    try:
        tool = read_toml(file).get("tool", {})
    except OSError as error:
        raise WrongUse(f"{file} cannot be read: {error.strerror or error}") from None
    except Unreadable as error:
        raise WrongUse(f"{file} cannot be read: {error}") from None
    if isinstance(tool, dict) and "stream-races" in tool:
        raise WrongUse(f"{file}: [tool.stream-races] is [{_TABLE}] now: rename the table and its subtables")
    table = tool.get("streamrace", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise WrongUse(f"{file}: [{_TABLE}] is not a table")
    return table


def _options(command: str) -> dict[str, click.Option]:
    """Return a command's options that have a long name, by that name."""
    options = [option for option in STREAMRACE.load(command).params if isinstance(option, click.Option)]
    long = {option: max(option.opts, key=len) for option in options}
    return {name.removeprefix("--"): option for option, name in long.items() if name.startswith("--")}


def _values(file: Path, where: str, command: str, table: Mapping[str, Any]) -> dict[str, Any]:
    if not table:
        return {}
    options = _options(command)
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in options:
            raise WrongUse(f"{file}: [{where}] has '{shortened(name)}', {_near(name, options)}")
        option = options[name]
        assert option.name is not None
        values[option.name] = _value(file, f"[{where}] {name}", option, value)
    return values


def _value(file: Path, key: str, option: click.Option, value: Any) -> Any:
    if option.multiple:
        if not isinstance(value, list):
            raise WrongUse(f"{file}: {key} is a list of {_KINDS[_kind(option)]}, not {_shown(value)}")
        return [_single(file, key, option, item) for item in value]
    return _single(file, key, option, value)


def _single(file: Path, key: str, option: click.Option, value: Any) -> Any:
    kind = _kind(option)
    number = kind is float and type(value) is int
    if type(value) is not kind and not number:
        raise WrongUse(f"{file}: {key} is {_KINDS[kind]}, not {_shown(value)}")
    if isinstance(option.type, click.Path):
        if "\0" in value:
            raise WrongUse(f"{file}: {key} is no path: {_shown(value)}")
        return os.path.relpath(file.absolute().parent / value)
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as problem:
        raise WrongUse(f"{file}: {key}: {problem.message}") from None
    return value


def _kind(option: click.Option) -> type:
    if option.is_flag:
        return bool
    if isinstance(option.type, click.types.IntParamType):
        return int
    return float if isinstance(option.type, click.types.FloatParamType) else str


def _shown(value: Any) -> str:
    words = {bool: "true or false", dict: "a table", list: "a list"}
    return words.get(type(value)) or shortened(repr(value))


def _near(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), 1, 0.5)
    return (
        f"which is no option: is it '{near[0]}'?"
        if near
        else "which is no option ('streamrace COMMAND --help' has them)"
    )
