"""Derives command-line options from the fields of a scenario or a job. Their help is the fields' own description.

A command may have other defaults than the fields: ``usual``. Its help and its behaviour use the same mapping, so that
they cannot differ (``tests/project/test_defaults.py``).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from streamrace.repro.commands.flags import Decorator, Function, factors
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job
from streamrace.scenarios.scenario import Scenario

_METAVARS = {"slow": "PATTERN=FACTOR", "frozen": "PATTERN", "without": "NAME"}
# Sections of a command's help. The fields' order differs, and the tokens depend on it.
SECTIONS = {
    "Model and data": ("model", "size", "words", "attention", "frozen", "data", "sequence", "precision", "seed"),
    "Training": (
        "steps", "micro_batch", "accumulation", "learning_rate", "clip", "checkpointing", "reentrant", "loop",
        "edit_after", "watch",
    ),
    "DeepSpeed": (
        "deepspeed", "graft", "config", "stage", "fix", "hpz", "qwz", "qgz", "overlap_comm", "prefetch_bucket",
        "persistence",
    ),
    "Our own engine, instead of DeepSpeed": ("sharding", "group", "rings", "without", "checkpoint_every", "resume"),
    "Cluster and timing": (
        "ranks", "nodes", "gpus", "hardware", "network", "host", "stands_for", "stands_for_micro_batch", "slow",
        "jitter", "timing_seed",
    ),
}  # fmt: skip
_SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names}


class Sections(click.Command):
    """A command whose help lists the fields' options under headings, after the command's own."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{section: [] for section in SECTIONS}}
        for parameter in self.get_params(context):
            if (record := parameter.get_help_record(context)) is not None:
                of_field = isinstance(parameter, FieldOption)
                rows[_SECTION_OF.get(parameter.name or "", "Options") if of_field else "Options"].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


class FieldOption(click.Option):
    """An option derived from a field of a scenario or a job."""


def scenario_options(*without: str, usual: Mapping[str, Any] | None = None) -> Decorator:
    """Return a decorator that adds an option for each field of :class:`Scenario`, except for ``without``."""
    return _options(Scenario, without, usual or {})


def job_options(*without: str, usual: Mapping[str, Any] | None = None) -> Decorator:
    """Return a decorator that adds an option for each field of :class:`Job`, except for ``without``."""
    return _options(Job, without, usual or {})


def chosen(values: dict[str, Any], model: type[BaseModel] = Scenario) -> dict[str, Any]:
    """Return the options that were given, ready for :func:`scenario` (or :func:`job`)."""
    options = {name: values[name] for name in model.model_fields if values.get(name) not in (None, (), "")}
    if "slow" in options:
        try:
            options["slow"] = factors(options["slow"], "stream:compute=20")
        except ValueError as error:
            raise ScenarioError(str(error)) from None
    return options


def _options(model: type[BaseModel], without: tuple[str, ...], usual: Mapping[str, Any]) -> Decorator:
    def decorate(command: Function) -> Function:
        for name, field in reversed(model.model_fields.items()):
            if name not in without:
                command = _option(name, field, usual.get(name, field.default))(command)
        return command

    return decorate


def _option(name: str, field: FieldInfo, usual: Any) -> Decorator:
    option = name.replace("_", "-")
    if name in _METAVARS:  # options that can be repeated
        many = {"multiple": True, "metavar": _METAVARS[name]}
        return click.option(f"--{option}", name, cls=FieldOption, help=field.description, **many)
    help_text = field.description if usual in (None, (), "") else f"{field.description} [default: {usual}]"
    kind = _plain(field.annotation)
    if kind is bool:
        return click.option(f"--{option}/--no-{option}", name, cls=FieldOption, default=None, help=help_text)
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        kind = click.Choice([str(word) for word in get_args(kind) or kind])
    return click.option(f"--{option}", name, cls=FieldOption, type=kind, help=help_text)


def _plain(annotation: Any) -> Any:
    """Return the type without None: ``int | None`` is ``int`` on a command line."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation
