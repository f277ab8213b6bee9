"""Caches recordings of scenarios: the same scenario under the same code is recorded once."""

from __future__ import annotations

import shutil
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console

from streamrace import checkout
from streamrace.device import timing
from streamrace.device.hardware import HardwareTiming
from streamrace.device.ranks import RankFailed
from streamrace.device.tokens import TokenError
from streamrace.frameworks.deepspeed.releases import installed
from streamrace.fuzz.subject import Subject
from streamrace.replay.faults import ReplayError
from streamrace.replay.recording import Recording
from streamrace.replay.tokens import Token
from streamrace.reports.screen.terminal import doing
from streamrace.repro.sessions import staging
from streamrace.scenarios.registry import from_text, named
from streamrace.scenarios.scenario import Scenario, save

_FOLDER = "recordings"
_MOST = 20  # number of recordings kept, the newest
_OURS = ("repro", "detectors", "scenarios", "frameworks", "replay", "device")


def token_of(text: str) -> Token:
    """Parse the token of a scenario. Raises :class:`TokenError`, with a hint for tokens of other commands."""
    try:
        return Token.parse(text)
    except TokenError:
        try:
            timing.Timing.parse(text)
        except TokenError:
            pass
        else:
            raise TokenError(
                f"{text} is the timing of a test or of a program of yours: 'pytest TEST --stream-timing', "
                "'streamrace check --timing' and 'streamrace replay FOLDER --timing' take it"
            ) from None
        raise


def scenario_of(token: Token) -> Scenario:
    """Return the scenario of a token. Raises :class:`TokenError` or a ScenarioError."""
    if token.scenario == "test":
        raise TokenError(
            "this is the token of a test, of an older release: run the test again, and it prints a new one"
        )
    return named(token.scenario, from_text(token.options))


def subject_of(scenario: Scenario, runs: Path, console: Console) -> tuple[Subject, Path]:
    """Return the scenario, recorded and ready to be executed, and its recording's folder (in ``runs/recordings``)."""
    folder = runs / _FOLDER / _key(scenario)
    if not (folder / "scenario.json").exists():
        with doing(console, "recording one live run"):
            _record(scenario, folder)
    with doing(console, "reading the recording"):
        try:
            return Subject.load(folder / "trace"), folder
        except ReplayError:
            shutil.rmtree(folder, ignore_errors=True)  # it is only a cache
            _record(scenario, folder)
            return Subject.load(folder / "trace"), folder


def live_run(scenario: Scenario, under: HardwareTiming, folder: Path) -> Recording:
    """Run the scenario on real ranks in the timing ``under``. Raises :class:`RankFailed`, ReplayError."""
    from streamrace.scenarios import program

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program.preload()
    program.run(scenario, simulated=True, folder=folder, record=True, timing=under)
    return Recording.load(folder / "trace")


def _record(scenario: Scenario, folder: Path) -> None:
    """Record in a staging folder first, as a partial recording is useless. A failed rank's output is kept."""
    begun = staging.staging_path(folder)
    with staging.locked(folder, patient=True):
        if (folder / "scenario.json").exists():
            return  # another command has recorded it meanwhile
        try:
            live_run(scenario, scenario.timing(), begun)
            save(scenario, begun / "scenario.json")
        except RankFailed:
            raise
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        begun.rename(folder)
    staging.clear(folder.parent)
    others = [path for path in folder.parent.iterdir() if (path / "scenario.json").exists() and path != folder]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[_MOST:]:
        shutil.rmtree(path, ignore_errors=True)


def _key(scenario: Scenario) -> str:
    """Return a hash of the scenario and everything that determines the recording."""
    digest = sha256(scenario.model_dump_json().encode())
    for part in (torch.__version__, installed() or "", version("transformers")):
        digest.update(part.encode())
    for package in _OURS:
        for path in sorted((checkout.PACKAGE / package).rglob("*")):
            if path.suffix in (".py", ".cpp", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
