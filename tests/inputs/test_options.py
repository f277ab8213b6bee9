"""Every option of every command, as the command line declares them, with whatever may be typed there: one sentence and
the documented exit status, or success. Never a traceback, never another file touched.

Nothing is started: a command that would start a rank fails there, with exit status 3.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from papers.__main__ import PAPERS
from streamrace.replay.tokens import EXAMPLE
from streamrace.repro.commands.table import STREAMRACE, CommandLine
from tests.examples import examples
from tests.inputs.hostile import ESCAPES
from tests.inputs.obeyed import nothing_starts, obeyed

_WHOLE = ("0", "1", "2", "8", "-1", "1000000", "999999999999", "9" * 30, "9" * 5_000, "1.5", "x", "", "inf")
_PART = ("0", "1", "0.5", "-1", "inf", "-inf", "nan", "1e400", "1e300", "1e-300", "9" * 400, "x", "")
_TEXTS = (
    "",
    "x",
    "none",
    "llama-2-7b",
    "IIG",
    "0.19.8",
    "a100-100gbps",
    "sample",
    "1,2",
    "1,inf",
    "nan",
    "0",
    "1e400",
    ",",
    "[/]",
    "[red]x",
    ESCAPES,
    "a" * 5_000,
    "it/nothing.toml",
    "it",
    "it/text",
    "stream:compute=2",
    "host=1e400",
    "host=nan",
    "host=inf",
    "=",
    "host=",
    "t1",
    "t1,main,steps=999999999999",
    "t1,hpz,jitter=inf",
    "t1,hpz,learning_rate=inf",
    "t1,x2:host",
    EXAMPLE,
    "9" * 5_000,
)
_PATHS = (
    "it",
    "it/text",
    "it/nothing",
    "elsewhere/victim",
    "it/broken.toml",
    ESCAPES,
    "[/]",
    "it/text/below",
    "a" * 300,
)
# Where a command writes: names and folders of runs have tests of their own.
_WRITTEN = {
    "runs": ("runs",),
    "name": ("x", "[red]x", "a b"),
    "output": ("out",),
    "out": ("mine.toml",),
    "csv": ("out.csv",),
    "plot": ("out.svg",),
    "database": ("runs/examples",),
}

_OF_PAPERS = [name for name in PAPERS.commands if name not in ("paper", "network")]  # which take seconds in any case


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("options")
    for name in ("it", "elsewhere", "runs"):
        (folder / name).mkdir()
    (folder / "it" / "text").write_text("no program\n")
    (folder / "it" / "broken.toml").write_text("tflops = [[[")
    (folder / "elsewhere" / "victim").write_text("nobody may write here")
    with nothing_starts():
        yield folder


def _program(name: str) -> CommandLine:
    return PAPERS if name in PAPERS.commands else STREAMRACE


@cache
def declared(name: str) -> list[click.Parameter]:
    return list(_program(name).load(name).params)


def typed(draw: Any, one: click.Parameter) -> list[str]:
    """One option with a value, or an argument."""
    if isinstance(one, click.Option) and one.is_flag:
        return [draw(st.sampled_from([*one.opts, *one.secondary_opts]))]
    kind = one.type
    if one.name in _WRITTEN:
        values = _WRITTEN[one.name]
    elif isinstance(kind, click.Choice):
        values = (*map(str, kind.choices), "x", "", ESCAPES)
    elif isinstance(kind, click.types.IntParamType):
        values = _WHOLE
    elif isinstance(kind, click.types.FloatParamType):
        values = _PART
    elif isinstance(kind, click.Path):
        values = _PATHS
    else:
        values = (*_TEXTS, *_PATHS)
    value = draw(st.sampled_from(values))
    return [f"{one.opts[-1]}={value}"] if isinstance(one, click.Option) else [value]


@pytest.mark.parametrize("name", [*(name for name, one in STREAMRACE.commands.items() if not one.plain), *_OF_PAPERS])
def test_whatever_is_typed_is_answered(name: str, place: Path) -> None:
    @examples(5, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        options = [one for one in declared(name) if isinstance(one, click.Option)]
        chosen = data.draw(st.lists(st.sampled_from(options), max_size=3, unique=True)) if options else []
        words = [word for one in chosen for word in typed(data.draw, one)]
        for one in declared(name):
            if isinstance(one, click.Argument):
                words += typed(data.draw, one)
        shutil.rmtree(place / "runs")
        (place / "runs").mkdir()
        obeyed([name, *words], place, _program(name))

    tried()


@pytest.mark.parametrize(
    "words",
    [
        ["--history", "0"],
        ["--history", "9" * 5_000],
        ["--bound", "nan"],
        ["--watch", ESCAPES],
        ["--on-finding", "x"],
        ["--modules", "[/]"],
        ["--nonsense"],
        ["--folder", "it/text"],
        ["--record", "it/text"],
    ],
)
def test_the_watch_answers_too(words: list[str], place: Path) -> None:
    """Its options are read by argparse."""
    said = obeyed(["watch", *words, "it/nothing.py"], place)
    assert said.status == 2
