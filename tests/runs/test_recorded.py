"""A scenario recorded on the simulated GPU is executed again by its recording alone: every value that training used."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from repro.replay.recording import Recording
from repro.replay.replayer import Replayer
from scenarios import program
from scenarios.scenario import scenario


def recorded(folder: Path, fix: str) -> Replayer:
    made = scenario(size="tiny", steps=2, sequence=32, accumulation=1, ranks=2, nodes=1, fix=fix)
    program.run(made, simulated=True, folder=folder, hear=lambda rank, message: None, record=True)
    return Replayer(Recording.load(folder / "trace"))


def test_every_value_that_training_used_comes_out_again(tmp_path: Path) -> None:
    replayer = recorded(tmp_path, "stream-sync")
    outcome = replayer.verify()
    assert outcome.checksums == replayer.recorded
    kinds = Counter(look.kind for look in replayer.looks)
    assert min(kinds[kind] for kind in ("loss", "parameter", "final", "read")) > 0


def test_what_a_race_read_of_memory_that_nothing_had_written_comes_out_again(tmp_path: Path) -> None:
    """The replay is as wrong as the run was, bit for bit; with each piece of work done at once it is not."""
    replayer = recorded(tmp_path, "none")
    outcome = replayer.verify()
    assert outcome.checksums == replayer.recorded
    right = replayer.run_order(replayer.graph.issue_order())
    pairs = zip(replayer.looks, outcome.checksums, right.checksums, strict=True)
    assert {look.kind for look, wrong, now in pairs if wrong != now} == {"parameter", "read"}
