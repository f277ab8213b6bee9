"""What the release before the house was rebuilt has left is read: its folders lie beside this file, as it wrote them.

``run``: ``streamrace run --size tiny --ranks 2 --nodes 1 --hpz 2 --fix none --steps 2 --accumulation 1 --sequence 32``,
without its trace. ``checked``: ``streamrace check --record`` of a program with two streams. ``campaign``: ``streamrace
fuzz hpz-short`` of five timings, without hpZ. ``study``: ``streamrace sweep`` of one setting, without its pictures.
``checkpoint``: two steps of our own engine, by one rank. What a newer version wrote is refused where its reader is
tested.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

from streamrace.device.timing import Timing
from streamrace.device.values import operator
from streamrace.replay.faults import ReplayError
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer
from streamrace.reports.data import campaigns, loading
from streamrace.reports.pages.folders import write
from streamrace.repro.sessions.recordings import scenario_of, token_of
from streamrace.repro.sessions.witnesses import token
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.scenario import load
from streamrace.scenarios.sharding import checkpoint
from streamrace.trace.files import file_of
from tests.sharding.interrupted import begun, bits
from tests.sharding.training import values

HERE = Path(__file__).parent
TOKEN = "t1,hpz-short,hardware=a100-100gbps,nodes=1,ranks=2"


def test_a_run_is_read_and_reported(tmp_path: Path) -> None:
    run = loading.load(HERE / "run")
    assert run.findings["verdict"] == "unstable" and len(run.races) == len(run.findings["races"]) > 0
    assert run.steps["step"].max() == 2 and len(run.checksums) > 0
    assert "never waits for stream 'compute'" in write([HERE / "run"], tmp_path)
    assert TOKEN in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_its_token_names_the_same_scenario_as_its_folder_and_is_written_alike() -> None:
    races = json.loads((HERE / "run" / "findings.json").read_text(encoding="utf-8"))["races"]
    assert {one["witness"]["token"] for one in races} == {TOKEN}
    there = load(HERE / "run" / "scenario.json")
    assert scenario_of(token_of(TOKEN)) == there
    assert str(token(there)) == TOKEN


def test_a_checked_program_is_reported_and_replayed_in_the_timing_of_its_witness(tmp_path: Path) -> None:
    assert "3 races" in write([HERE / "checked"], tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "stream 1 never waits for stream 'default'" in text and "stream 'stream" not in text
    replayer = Replayer(Recording.load(HERE / "checked" / "trace"))
    as_recorded = replayer.verify()
    timing = Timing.parse("t1,0/0/aten::fill_/1+8us")
    late = replayer.run(replayer.recording.deviated(timing.deviations))
    assert late.departure is not None and late.checksums != as_recorded.checksums


def test_a_trace_of_before_is_refused_with_its_version(tmp_path: Path) -> None:
    with file_of(HERE / "checked" / "trace", 0).open("rb") as file:
        rows = list(msgpack.Unpacker(file))
    rows[0][2] = 1
    file_of(tmp_path, 0).write_bytes(b"".join(map(msgpack.packb, rows)))
    with pytest.raises(ReplayError, match="has format version 1, .* use the release that wrote it"):
        Recording.load(tmp_path)


def test_a_campaign_is_read_and_reported(tmp_path: Path) -> None:
    found = campaigns.load(HERE / "campaign")
    assert found.data["campaign"]["timings"] == 5
    assert "none of 5 timings changes a bit" in write([HERE / "campaign"], tmp_path)


def test_a_study_is_read_and_reported(tmp_path: Path) -> None:
    said = write([HERE / "study"], tmp_path)
    assert "up to 1.42 times as fast as ZeRO-3 (at 12.5 Gbit/s between nodes)" in said
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "--networks 12.5 --micro-batches 1" in page
    asked = json.loads((HERE / "study" / "job.json").read_text(encoding="utf-8"))
    now = job(**asked).model_dump(mode="json")
    assert [(name, now[name]) for name in now if name in asked] == list(asked.items())
    assert all(now[name] == Job.model_fields[name].get_default() for name in now.keys() - asked.keys())


def test_a_checkpoint_is_loaded_with_every_bit() -> None:
    made = begun(1, None, "GGG", 1)
    assert checkpoint.load(made, HERE / "checkpoint") == 2
    assert bits(values(made)) == 3329955377


def test_what_the_watch_recorded_is_called_by_the_name_of_today() -> None:
    assert operator("detectors::look.default") is operator("detectors::probe.default")
