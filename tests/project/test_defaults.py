"""The help of every command states the default that the command has where an option is left out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from papers.__main__ import PAPERS
from streamrace.detectors import NanWatch
from streamrace.detectors.live.auto import AutoWatch
from streamrace.detectors.live.watch import DEFAULT
from streamrace.device.options import GPUS, NODES
from streamrace.frameworks.deepspeed.releases import KNOWN
from streamrace.repro.commands import watch
from streamrace.repro.commands.options import Job, Scenario
from streamrace.repro.commands.table import STREAMRACE
from streamrace.scenarios import job, scenario

_STATED = re.compile(r"\[default: ([^\]]+)\]")
# What is not a value: what the command does instead is said in words.
_WORDS = {
    *(
        "the time",
        "dry- and the time",
        "waits-, the script's and the time",
        "bisect-, its name and the time",
        "the script's and the time",
        "the folder's and the time",
        "the cores",
        "all",
        "all known",
        "all of them",
        "the catalogue's",
    ),
    *("all 14", "all 14, and hpZ", "both", "none", "a node", "the hardware's", "a plain model"),
    *("paro, paro-paper, ...", "standard output; other messages go to standard error"),
    "RUN/test_race_N.py",
    "RUN/report, for several runs a folder of their names beside the first; with --format standard output",
    "RUN/fix-RACE's number",
    *("--extend from 40 layers on", "examples, under --runs", "Llama 7B to 70B, and Falcon-40B"),
    *("8; for 7B and 70B 2, 4 and 16 as well", "llama-2-7b; llama-2-70b on one network", "*"),
    *("12.5,100,400; 100 for llama-2-70b", "0.13.2, 0.13.4, 0.13.5 and the pinned one", "live"),
}


class _Made(BaseException):
    """The command has all that it needs to begin, which is as far as it is let."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.values = values


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every command ends where it knows what it is to do, with the values that it then has."""

    def fitted(model: type[Job | Scenario], options: Mapping[str, Any]) -> Job:
        made = model(**options)
        raise _Made({**made.model_dump(), "group": made.sharding_group})

    def watched(_: Any, **given: Any) -> None:
        raise _Made({**{name: one.default for name, one in inspect.signature(NanWatch).parameters.items()}, **given})

    monkeypatch.setattr(job, "fitted", fitted)
    monkeypatch.setattr(scenario, "fitted", fitted)
    monkeypatch.setattr(AutoWatch, "__init__", watched)
    return


def done(command: click.Command, *arguments: str) -> Mapping[str, Any]:
    with pytest.raises(_Made) as end:
        command.main(list(arguments), standalone_mode=False)
    return end.value.values


def told(value: Any) -> str:
    """As a help says it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def differing(options: Iterable[tuple[str, str, Any]], real: Mapping[str, Any]) -> list[str]:
    """Of options (name, help, the parser's own default) those whose help says otherwise than what is so."""
    wrong = []
    for name, text, own in options:
        stated = _STATED.search(text)
        if stated is None:
            continue
        value = real.get(name) if own is None else own
        in_words = stated[1] in _WORDS and (value is True or value in (None, "", (), DEFAULT, ",".join(KNOWN)))
        if isinstance(value, float) and float(stated[1]) == value:
            continue
        if not in_words and told(value) not in {stated[1], stated[1].partition("; ")[0]}:
            wrong.append(f"{name}: [default: {stated[1]}], and it is {told(value)}")
    return wrong


def of(command: click.Command) -> Iterator[tuple[str, str, Any]]:
    for one in command.params:
        if isinstance(one, click.Option) and one.name:
            default = None if one.multiple else one.to_info_dict()["default"]
            yield one.name, one.help or "", default


ASKED = {  # commands whose defaults are not the parser's own, and what they cannot do without
    "run": (),
    "compare": (),
    "fuzz": (),
    "dry": (),
    "plan": (),
    "sweep": (),
    "memory": (),
    "placements": (),
    "why": (),
    "choose": (),
    "paro": (),
}


@pytest.mark.parametrize(
    "name", [name for name, one in {**PAPERS.commands, **STREAMRACE.commands}.items() if not one.plain]
)
def test_the_default_that_a_help_states_is_the_one_that_the_command_has(
    name: str, ends: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = PAPERS if name in PAPERS.commands else STREAMRACE
    command = program.load(name)
    real = done(command, *ASKED[name]) if name in ASKED else {}
    if name == "check":
        real = {"nodes": NODES, "gpus": GPUS}
    assert differing(of(command), real) == []


def test_so_it_is_with_the_watch_whose_options_are_no_clicks(ends: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(_Made) as end:
        watch.run([str(script)])
    told_of = ((one.dest, one.help or "", None) for one in watch.options()._actions)
    assert differing(told_of, end.value.values) == []
