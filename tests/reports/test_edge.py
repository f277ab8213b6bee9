"""The picture of the missing edge says what the race says, to eyes and to screen readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from streamrace.detectors import Race, Side
from streamrace.reports.charts import edge
from streamrace.trace.records import Frame

SVG = "{http://www.w3.org/2000/svg}"


def side(access: Any, kernel: str, stream: str, line: int, issuer: str = "", file: str = "zero/partition.py") -> Side:
    return Side(kernel, access, stream, issuer, (Frame(file, line, "f"),))


def race(**more: Any) -> Race:
    known = Race(
        kind="write-read",
        first=side("write", "aten::copy_", "compute", 1946),
        second=side("read", "nccl::all_gather", "nccl hpz", 123, "all-gather"),
        occurrences=1,
        manifested=0,
        slack_ns=7,
        ranks=(0,),
        names=(),
        examples=(),
    )
    return replace(known, **more)


def words(told: Race) -> list[str]:
    return ["".join(text.itertext()) for text in picture(told).iter(f"{SVG}text")]


def picture(told: Race) -> Xml.Element:
    return Xml.fromstring(str(edge.svg(told)))


def test_a_collective_has_three_lanes_and_two_edges() -> None:
    assert words(race()) == [
        "stream compute",
        "stream all-gather",
        "stream nccl hpz",
        "takes its order",
        "missing: wait",
        "1. write by copy_",
        "partition.py:1946",
        "2. read by all_gather",
        "partition.py:123",
    ]


def test_a_stream_without_a_name_and_the_host_are_called_so() -> None:
    told = words(race(first=side("write", "aten::copy_", "stream 7", 3), second=side("read", "aten::sum", "host", 4)))
    assert {"stream 7", "the host"} < set(told)


def test_a_kernel_has_two_lanes_and_the_missing_edge_alone() -> None:
    told = words(race(second=side("read", "aten::cat", "all-gather", 1353)))
    assert told[:3] == ["stream compute", "stream all-gather", "missing: wait"] and "takes its order" not in told


def test_freed_memory_misses_one_of_two() -> None:
    told = words(race(kind="freed", second=Side("free", "free", "all-gather")))
    assert "missing: wait or record_stream" in told and told[-1] == "2. free of memory"


def test_it_is_named_for_who_cannot_see_it() -> None:
    drawn = picture(race())
    assert drawn.get("role") == "img" and drawn.get("viewBox", "").startswith("0 0 360 ")
    assert drawn.findtext(f"{SVG}title") == "write by copy_ and read by all_gather: no edge orders them"
    assert drawn.findtext(f"{SVG}desc") == race().missing_wait


def test_it_can_stand_on_a_page_twice() -> None:
    assert "id=" not in str(edge.svg(race())) and edge.svg(race()) == edge.svg(race())


@pytest.mark.parametrize(
    "evil", ["</text><script>alert(1)</script>", "\"'&amp;", "\u202eשלום", "$$x$$", "x" * 10_000, "\x00\ud800"]
)
def test_names_stay_text(evil: str) -> None:
    first = side("write", evil, evil, 1, file=evil)
    drawn = picture(race(first=first, second=side("read", evil, evil + "2", 1, evil + "3")))  # well-formed
    known = {"svg", "title", "desc", "line", "text", "tspan", "rect", "path", "circle"}
    assert {one.tag.removeprefix(SVG) for one in drawn.iter()} <= known
    text = "".join(drawn.itertext())
    assert "\u202e" not in text and len(text) < 2000


def test_numbers_of_lanes_follow_the_streams() -> None:
    same = race(second=side("read", "nccl::all_gather", "nccl hpz", 123, "compute"))
    assert [word for word in words(same) if word.startswith("stream")] == ["stream compute", "stream nccl hpz"]
