"""The order that is read from a trace, against what can be reached in a graph of all calls, for random programs."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrace.kineto import file, order
from tests.examples import examples
from tests.kineto.profiled import Profiled

STREAMS, THREADS = (7, 20, 21), (1, 2)
KINDS = ("work", "work", "record", "wait", "Event Sync", "Stream Sync", "Context Sync")
CALLS = st.tuples(
    st.sampled_from(KINDS), st.sampled_from(STREAMS), st.sampled_from(THREADS), st.integers(0, 30), st.integers(1, 40)
)


class Graph:
    """All calls as nodes, and an edge where one is behind another: by definition, and without clocks."""

    def __init__(self) -> None:
        self.edges: dict[Any, set[Any]] = {}
        self.last: dict[Any, Any] = {}  # of a stream, or a thread

    def give(self, node: Any, stream: int, thread: int) -> None:
        """A stream gets something from a thread: it comes behind the stream's own and what the thread waited for."""
        self.edges[node] = {at for at in (self.last.get(stream), self.last.get(f"host {thread}")) if at is not None}
        self.last[stream] = node

    def block(self, node: Any, thread: int, behind: list[Any]) -> None:
        before = self.last.get(f"host {thread}")
        self.edges[node] = {at for at in (before, *behind) if at is not None}
        self.last[f"host {thread}"] = node

    def reaches(self, first: Any, second: Any) -> bool:
        seen, waiting = set(), [second]
        while waiting:
            for node in self.edges[waiting.pop()] - seen:
                seen.add(node)
                waiting.append(node)
        return first in seen


def program(calls: list[Any]) -> tuple[Profiled, Graph, dict[int, list[int]]]:
    made, graph, works = Profiled(), Graph(), {stream: [] for stream in STREAMS}
    records: list[tuple[int, int]] = []
    used, count = set(), 0  # the trace tells the stream of those events alone for which something waits
    for kind, _, _, which, _ in calls:
        count += kind == "record"
        used |= {which % count} if count and kind in ("wait", "Event Sync") else set()
    for kind, stream, thread, which, us in calls:
        if kind == "work":
            works[stream].append(made.work("kernel", stream, us=us, thread=thread))
            graph.give(made.calls, stream, thread)
        elif kind == "record":
            records.append((made.record(thread), stream))
            if len(records) - 1 in used:
                graph.give(made.calls, stream, thread)
        elif kind == "wait" and records:
            event, of = records[which % len(records)]
            made.wait(stream, event, of, thread)
            graph.give(made.calls, stream, thread)
            graph.edges[made.calls].add(event)
        elif kind == "Event Sync" and records:
            event, of = records[which % len(records)]
            made.host(kind, event=event, of=of, thread=thread)
            graph.block(made.calls, thread, [event])
        elif kind == "Stream Sync":
            made.host(kind, stream=stream, thread=thread)
            graph.block(made.calls, thread, [graph.last.get(stream)])
        elif kind == "Context Sync":
            made.host(kind, thread=thread)
            graph.block(made.calls, thread, [graph.last.get(stream) for stream in STREAMS])
    return made, graph, works


@examples(400)
@given(st.lists(CALLS, max_size=30))
def test_work_is_unordered_where_no_path_leads_from_one_to_the_other(calls: list[Any]) -> None:
    made, graph, works = program(calls)
    with TemporaryDirectory() as folder:
        found = order.read(file.read(made.write(Path(folder))))
    assert {stream.number: [work.correlation for work in some] for stream, some in found.streams.items()} == {
        stream: some for stream, some in works.items() if some
    }
    spans = {event["args"]["correlation"]: event for event in made.events if event["cat"] == "kernel"}

    def overlap(one: int, other: int) -> bool:
        first, second = spans[one], spans[other]
        return first["ts"] < second["ts"] + second["dur"] and second["ts"] < first["ts"] + first["dur"]

    for first, second in permutations(found.streams, 2):
        expected = {}
        for later in works[second.number]:
            apart = [one for one in works[first.number] if one < later and not graph.reaches(one, later)]
            if apart:
                expected[later] = apart, [one for one in apart if overlap(one, later)]
        told = {pair.second.correlation: pair for pair in found.unordered(first, second)}
        assert told.keys() == expected.keys()
        for later, (apart, together) in expected.items():
            assert told[later].overlapped == bool(together)
            assert told[later].first.correlation == (min(together) if together else apart[-1])
            assert not told[later].second.waits_for(told[later].first)


def test_the_random_programs_have_the_fields_of_a_real_trace() -> None:
    """Of a trace of an A100 that Holistic Trace Analysis has among its tests (cuda_event_sync_multi_stream)."""
    real = {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 1385, "stream": 24, "correlation": 1389}
    made = Profiled()
    made.wait(24, 1, 20)
    (wait,) = (event for event in json.loads(made.text())["traceEvents"] if event["cat"] == "cuda_sync")
    assert real.keys() <= wait["args"].keys()
    assert wait["name"] == "Stream Wait Event"
