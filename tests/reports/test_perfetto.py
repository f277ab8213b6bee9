"""The timeline keeps to the trace-event format, and shows what the trace says."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from streamrace.detectors import Race
from streamrace.reports.timelines import perfetto
from streamrace.trace.files import TraceWriter
from streamrace.trace.records import Alloc, Begin, End, Free, HostWait, Label, StreamName, TraceError
from tests.detectors.story import Story

Event = dict[str, Any]


def written(story: Story, folder: Path) -> Path:
    path = folder / "rank0.trace"
    begin = story.trace[0]
    assert isinstance(begin, Begin)
    writer = TraceWriter(path, rank=0, world=64, info={})
    writer.write(story.trace[1:])
    writer.close()
    return path


def events_of(story: Story, folder: Path, *, races: list[Race] | None = None, **steps: int) -> list[Event]:
    out = folder / "timeline.json"
    perfetto.write(written(story, folder), story.races() if races is None else races, out, **steps)
    data = json.loads(out.read_text(encoding="utf-8"))
    check(data)
    events: list[Event] = data["traceEvents"]
    return events


def of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["ph"] == kind]


def tracks(events: list[Event]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in of(events, "M") if event["name"] == "thread_name"}


def check(data: Any) -> None:
    """The rules of the format that the viewers rely on."""
    assert data["displayTimeUnit"] in ("ms", "ns")
    events = data["traceEvents"]
    assert {event["ph"] for event in events} <= set("MXCisf")
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert [event for event in events if event["name"] == "process_name"]
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str) and event["pid"] > 0 and event["tid"] > 0
        if event["ph"] == "M":
            continue
        assert (event["pid"], event["tid"]) in named
        assert event["ts"] >= 0
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            slices[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
        elif event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        elif event["ph"] == "i":
            assert event["s"] == "t"
        else:
            flows[event["id"]].append(event)
    for track in slices.values():
        open_: list[tuple[int, int]] = []
        for start, end in sorted(track, key=lambda one: one[0]):  # stable: as written where they begin together
            while open_ and open_[-1][1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1][1], "slices of a track overlap, and neither is in the other"
            open_.append((start, end))
    for ends in flows.values():
        start, end = ends
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        for one in ends:
            at = round(one["ts"] * 1000)
            around = [(lo, hi) for lo, hi in slices[one["pid"], one["tid"]] if lo <= at and (at < hi or lo == hi == at)]
            assert around, "an arrow ends outside of all slices"


def a_step(*, shown: bool = False) -> Story:
    """A copy, and a collective that reads what it writes without waiting."""
    story = Story()
    group = story.group(5, 0)
    compute, gather, nccl = story.streams("compute", "all-gather", "nccl world")
    story.phase(1, 1, "forward")
    a, whole = story.block(64, on=compute), story.block(128, on=compute)
    compute.writes(a, time=(1000, 2001))
    nccl.collective(group, reads=a, writes=whole, time=(1500, 3000) if shown else (2500, 3000))
    gather.waits_for(nccl)
    gather.runs(reads=whole, time=(3000, 3000))
    story.labels(a, "secondary", "layer.0.weight")
    return story


def test_tracks_come_in_the_order_in_which_they_are_read(tmp_path: Path) -> None:
    story = Story()
    for stream in story.streams("nccl world", "reduce", "compute", "nccl hpz", "all-gather", "never used"):
        if stream.name != "never used":
            stream.runs()
    events = events_of(story, tmp_path)
    names = tracks(events)
    assert [names[tid] for tid in sorted(names)] == [
        "host",
        "compute",
        "all-gather",
        "reduce",
        "nccl hpz",
        "nccl world",
    ]
    (process,) = [event for event in events if event["name"] == "process_name"]
    assert process["args"] == {"name": "rank 0 of 64"}
    indices = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    assert sorted(names, key=indices.__getitem__) == sorted(names)


def test_a_slice_says_what_the_work_is(tmp_path: Path) -> None:
    events = events_of(a_step(), tmp_path)
    copy, gathered = (event for event in of(events, "X") if event["cat"] in ("kernel", "collective") and event["dur"])
    assert (copy["name"], copy["ts"], copy["dur"]) == ("copy_ layer.0.weight", 1.0, 1.001)
    assert copy["args"] == {
        "op": 0,
        "kernel": "aten::copy_",
        "bytes written": 64,
        "stack": ["/src/model.py:0 forward", "/src/train.py:1 main"],
    }
    assert gathered["name"] == "all_gather layer.0.weight"
    assert (gathered["args"]["group"], gathered["args"]["number"], gathered["args"]["bytes read"]) == ([0], 0, 64)


def test_a_race_is_an_arrow_between_its_two_accesses(tmp_path: Path) -> None:
    events = events_of(a_step(), tmp_path)
    names = tracks(events)
    (start,), (end,) = of(events, "s"), of(events, "f")
    assert start["name"] == "race 1: write-read" and start["cat"] == "race"
    assert (names[start["tid"]], start["ts"]) == ("compute", 2.0)  # the write ends at 2001: just inside
    assert (names[end["tid"]], end["ts"]) == ("nccl world", 2.5)
    marks = {mark["name"]: mark for mark in of(events, "i")}
    assert set(marks) == {
        "race 1: write-read, issued first (write)",
        "race 1: write-read, issued second (read)",
    }
    assert {mark["args"]["slack_ns"] for mark in marks.values()} == {499}


def test_an_arrow_runs_forward_in_time_where_the_order_was_reversed(tmp_path: Path) -> None:
    events = events_of(a_step(shown=True), tmp_path)
    names = tracks(events)
    (start,), (end,) = of(events, "s"), of(events, "f")
    assert (names[start["tid"]], names[end["tid"]]) == ("nccl world", "compute")
    assert of(events, "i")[0]["args"]["manifested"] is True


def test_a_free_is_the_hosts_and_lies_in_its_phase(tmp_path: Path) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    story.phase(1, 1, "forward")
    a = story.block(on=compute)
    compute.runs(time=(0, 10))
    gather.reads(a, time=(5, 40))
    story.frees(a, time=20)
    story.adds(End(40))
    events = events_of(story, tmp_path)
    names = tracks(events)
    (start,), (end,) = of(events, "s"), of(events, "f")
    assert (names[start["tid"]], start["ts"]) == ("host", 0.02)
    assert names[end["tid"]] == "gather"


def test_phases_hold_the_waits_of_the_host(tmp_path: Path) -> None:
    story = Story()
    (compute,) = story.streams("compute")
    story.phase(1, 1, "forward")
    story.adds(HostWait(compute.records(), "read", 0, 50, 0))  # begins with its phase
    story.phase(1, 1, "backward")
    story.adds(HostWait(compute.records(), "synchronize", 0, 90, 70))
    story.adds(HostWait(compute.records(), "query", 0, 95, 95))
    story.phase(1, 1, "step")
    events = events_of(story, tmp_path)
    assert [(event["name"], event["ts"], event["dur"]) for event in of(events, "X")] == [
        ("forward", 0.0, 0.05),
        ("backward", 0.05, 0.045),
        ("wait (read)", 0.0, 0.05),
        ("wait (synchronize)", 0.07, 0.02),
    ]


def test_memory_is_counted_once_for_each_moment(tmp_path: Path) -> None:
    story = Story()
    for record in (Alloc(1, 100, 0, 5), Alloc(2, 50, 0, 5), Alloc(3, 9, -1, 6), Free(1, 7), Free(9, 8)):
        story.adds(record)
    counts = of(events_of(story, tmp_path), "C")
    assert [(event["ts"], event["args"]) for event in counts] == [
        (0.005, {"bytes": 150}),
        (0.007, {"bytes": 50}),
        (0.008, {"bytes": 50}),
    ]


def test_only_some_steps(tmp_path: Path) -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    for step in range(1, 5):
        story.phase(step, 1, "forward")
        story.adds(Alloc(100 + step, 10, 0, 30 * step))
        a = story.block()
        compute.writes(a, at=1)
        gather.reads(a, at=2)
    events = events_of(story, tmp_path, first_step=2, last_step=3)
    assert [event["args"]["op"] for event in of(events, "X") if event["cat"] == "kernel"] == [2, 3, 4, 5]
    assert {event["args"]["step"] for event in of(events, "X") if event["cat"] == "phase"} == {2, 3}
    assert len(of(events, "s")) == len(of(events, "f")) == 2
    assert [event["args"]["bytes"] for event in of(events, "C")] == [20, 30]  # the first step's is still there


def test_names_of_any_characters_survive(tmp_path: Path) -> None:
    name = 'a "quoted"\nname\\ with \u2028, \U0001f600 and </script>'
    story = Story()
    (stream,) = story.streams("compute")
    story.adds(StreamName(0, name))
    a = story.block()
    stream.writes(a)
    story.adds(Label(a.block, a.lo, a.hi, "primary", name))
    events = events_of(story, tmp_path)
    assert name in tracks(events).values()
    assert of(events, "X")[-1]["name"] == f"copy_ {name}"


def test_several_parameters_are_the_first_and_how_many_more(tmp_path: Path) -> None:
    story = Story()
    (stream,) = story.streams("compute")
    a = story.block(64)
    for at, name in enumerate("cab"):
        story.labels(a[16 * at : 16 * at + 16], "primary", name)
    stream.writes(a)
    assert of(events_of(story, tmp_path), "X")[-1]["name"] == "copy_ a +2"


def test_a_name_that_ends_with_gz_is_compressed_always_to_the_same_bytes(tmp_path: Path) -> None:
    trace, plain = written(a_step(), tmp_path), tmp_path / "timeline.json"
    perfetto.write(trace, a_step().races(), plain)
    for name in ("one.json.gz", "two.json.gz"):
        perfetto.write(trace, a_step().races(), tmp_path / name)
    assert gzip.decompress((tmp_path / "one.json.gz").read_bytes()) == plain.read_bytes()
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_work_that_never_ended_is_left_out(tmp_path: Path) -> None:
    story = Story()
    (stream,) = story.streams("compute")
    stream.runs(time=(-1, -1))
    assert of(events_of(story, tmp_path), "X") == []


def test_races_of_other_ranks_are_not_drawn(tmp_path: Path) -> None:
    story = Story(ranks=2)
    compute, gather = story.hosts[1].streams("compute", "gather")
    a = story.hosts[1].block()
    compute.writes(a)
    gather.reads(a)
    assert story.races() and not of(events_of(story, tmp_path), "s")


def test_an_empty_file_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "rank0.trace").write_bytes(b"")
    with pytest.raises(TraceError, match="is empty"):
        perfetto.write(tmp_path / "rank0.trace", [], tmp_path / "out.json")
