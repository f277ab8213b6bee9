"""``streamrace fuzz`` and ``streamrace replay``: what a user types, and what comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from streamrace.repro.__main__ import main

Repro = Callable[..., "Done"]
TOKEN = re.compile(r"streamrace replay (\S+)")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All commands of this file share the recordings."""
    return tmp_path_factory.mktemp("runs")


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def repro(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line, in this process: what it imports takes seconds."""

    def run(*arguments: str) -> Done:
        status = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            status = int(end.code or 0)
        return Done(status, *capsys.readouterr())

    return run


def test_fuzz_finds_the_race_makes_it_small_and_confirms_it_live(runs: Path, repro: Repro) -> None:
    how = ("--examples", "24", "--workers", "2", "--live", "--expect", "diverged")
    done = repro("fuzz", "hpz-short", *how, "--runs", str(runs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Confirmed by a live run of DeepSpeed: the same divergence" in " ".join(done.stdout.split())
    assert "1-minimal" in done.stdout
    said = json.loads((runs / "fuzz-hpz-short" / "timings.json").read_text())
    assert "goes wrong" in (runs / "fuzz-hpz-short" / "report" / "report.md").read_text()
    assert (runs / "fuzz-hpz-short" / "report" / "index.html").is_file()
    assert said["campaign"]["diverged"] > 0
    assert said["campaign"]["minimal"]
    assert said["confirmed"]
    assert [race["harmful"] for race in said["races"]] == [True, True]
    tokens = TOKEN.findall(done.stdout)
    assert tokens == [*(race["token"] for race in said["races"]), said["token"]]
    assert max(map(len, tokens)) <= 120
    rows = pd.read_csv(runs / "fuzz-hpz-short" / "timings.csv")
    assert len(rows) == said["campaign"]["timings"]
    assert rows["diverged"].sum() == said["campaign"]["diverged"]

    # The tokens do what was said of them, and another campaign begins with what this one found.
    for race in said["races"]:
        again = json.loads(repro("replay", race["token"], "--json", "--times", "3", "--runs", str(runs)).stdout)
        assert again["first"] == race["verdict"]["first"]
        assert again["wrong"] == race["verdict"]["wrong"]
    second = repro("fuzz", "hpz-short", "--examples", "1", "--workers", "1", "--runs", str(runs))
    assert "an earlier campaign knew it" in " ".join(second.stdout.split())


@pytest.mark.wide  # recorded/test_campaign.py says the same of the fix each time
def test_fuzz_with_the_fix_finds_nothing(runs: Path, repro: Repro) -> None:
    fixed = ("--fix", "stream-sync", "--size", "tiny", "--runs", str(runs))
    done = repro("fuzz", "hpz-short", *fixed, "--examples", "8", "--workers", "1", "--expect", "clean")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finds no race" in done.stdout
    assert "0 of 8" in done.stdout
    missed = repro("fuzz", "hpz-short", *fixed, "--examples", "2", "--workers", "1", "--expect", "diverged")
    assert missed.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("replay", "t2,hpz"), "this release reads"),
        (("replay", "rubbish"), "token"),
        (("replay", "t1,nothing"), "there is no scenario 'nothing': choose"),
        (("replay", "t1,hpz-shrot"), "there is no scenario 'hpz-shrot' (did you mean 'hpz-short'?): choose"),
        (("replay", "t1,hpz,colour=red"), "there is no scenario option 'colour'"),
        (("replay", "t1,hpz,fix=glue"), "fix"),
        (("replay", "t1,test,file=x"), "of an older release: run the test again"),
        (("replay", "t1,0/1/aten::mul/1+8us"), "--stream-timing"),
        (("fuzz", "nothing"), "there is no scenario 'nothing'"),
        (("fuzz", "--examples", "0"), "--examples"),
        (("fuzz", "--seconds", "0"), "--seconds"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    arguments: tuple[str, ...], sentence: str, runs: Path, repro: Repro
) -> None:
    done = repro(*arguments, "--runs", str(runs))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_whose_operation_is_gone_says_what_is_near(runs: Path, repro: Repro) -> None:
    gone = "t1,hpz-short,0/2.1/forward/model.layers.7.mlp.up_proj.weight/copy_/1+64us"
    done = repro("replay", gone, "--runs", str(runs))
    assert done.returncode == 2
    assert "model.layers.7.mlp.up_proj.weight" in done.stderr
    assert "model.layers.1.mlp.up_proj.weight" in done.stderr
    assert "Traceback" not in done.stderr
