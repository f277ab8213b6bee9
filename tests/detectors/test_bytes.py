"""The native engine reads the bytes of a trace, which anybody may have made: it judges or refuses them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrace.detectors import RaceDetector, find_races
from streamrace.detectors.files import read
from streamrace.trace.encoding import Encoded, encode
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import (
    Access,
    Alloc,
    Call,
    Free,
    Label,
    Launch,
    Onward,
    Phase,
    Record,
    Stack,
    StreamName,
    TraceError,
    TraceRecord,
    begin,
)
from streamrace.trace.schema import CODES, TYPES
from tests.detectors.story import Story
from tests.detectors.test_find_races import story_of, write
from tests.examples import examples

REFUSED = (TraceError, ValueError)


def judge(data: bytes) -> None:
    """As the native engine alone does; it may refuse the bytes in a sentence."""
    detector = RaceDetector(engine="native")
    refusal = None
    try:
        detector.feed(0, Encoded(data, (len(data),), "it"))
        detector.finish()
        detector.findings()
    except REFUSED as error:
        refusal = str(error)
    assert refusal is None or (refusal and "\n" not in refusal)


def racing() -> list[TraceRecord]:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    return story.trace


@given(st.binary(max_size=200))
@example(b"\xdd\xff\xff\xff\xff")  # an array of so many elements
@example(b"\xdf\xff\xff\xff\xff" + b"\x81" * 60)
@example(b"\x91" * 200)  # arrays in arrays
@example(b"\x92\x0e" + b"\x91" * 100_000)
@example(b"\x92\x09\xdb\xff\xff\xff\xffabc")  # a text that ends behind the file
@example(b"\x90")
@example(b"")
@examples(300)
def test_any_bytes_are_refused_or_judged(data: bytes) -> None:
    judge(data)


@given(st.data())
@examples(300)
def test_bytes_changed_in_a_trace_are_refused_or_judged(data: st.DataObject) -> None:
    raw = bytearray(encode(racing()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(("change", "remove", "insert", "cut")))
        if how == "cut":
            del raw[at:]
            break
        new = b"" if how == "remove" else data.draw(st.binary(min_size=1, max_size=3))
        raw[at : at + (how != "insert")] = new
        if not raw:
            break
    judge(bytes(raw))


VALUES: list[Any] = [None, True, -1, 1 << 63, 1.5, "x", b"x", (), (1,), {"a": 1}, msgpack.ExtType(5, b"xyz")]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: str(kind.__name__))
def test_a_field_of_any_type_is_refused_or_judged(kind: type[Any]) -> None:
    for field in range(len(kind._fields)):
        for value in VALUES:
            row = [CODES[kind], *([0] * field), value, *([0] * (len(kind._fields) - field - 1))]
            judge(msgpack.packb(row))
    for count in range(20):
        judge(msgpack.packb([CODES[kind], *([0] * count)]))


def test_every_encoding_of_a_number_is_read() -> None:
    """A packer may take more bytes for a number than it needs."""
    for head, code in enumerate(("B", ">H", ">I", ">Q", "b", ">h", ">i", ">q"), start=0xCC):
        wide = bytes((head,)) + struct.pack(code, 1)
        data = encode([begin(0, 1)]) + b"\x93" + bytes((CODES[Record],)) + wide + wide
        detector = RaceDetector(engine="native")
        detector.feed(0, Encoded(data + encode([Launch(0, 1, "k", (), (), -1, 0, 0, 0)]), (), "it"))
    with pytest.raises(ValueError, match="^a field is no integer of 64 bits$"):
        detector.feed(0, Encoded(b"\x93" + bytes((CODES[Record],)) + b"\xcf" + b"\xff" * 8 + b"\x00", (), "it"))


def test_a_number_of_every_size_is_what_it_was() -> None:
    for value in (sign * (1 << bits) + by for bits in range(63) for sign in (1, -1) for by in (-1, 0, 1)):
        detector = RaceDetector(engine="native")
        detector.feed(0, [Launch(value, stream, "k", (), (Access(1, 0, 8),), -1, 0, 0, 1) for stream in (0, 1)])
        (race,) = detector.findings()
        assert race.examples[0].first.op == value


def test_what_a_replay_needs_is_passed_over() -> None:
    """Of each shape that a record may have."""
    long: list[Any] = ["x" * 300, "x" * 70_000, b"x" * 300, tuple(range(70_000)), dict.fromkeys(range(20), 1)]
    values = (*VALUES, *long)
    call = Call(0, "aten::add", (values, *VALUES), {"a": values, "b": 1}, (), (), "float32", b"x" * 70_000)
    detector = RaceDetector(engine="native")
    detector.feed(0, [*racing()[:-1], call, *racing()[-1:]])
    assert len(detector.findings()) == 1


@pytest.mark.parametrize("frames", [5, (5,), (("a.py", 1),), ((1, 1, "f"),), (("a.py", "1", "f"),), (("a.py", 1, 2),)])
def test_a_stack_of_other_things_is_refused(frames: Any) -> None:
    with pytest.raises(ValueError, match="^a (field|record) "):
        RaceDetector(engine="native").feed(0, [Stack(0, frames)])


def test_a_record_of_an_earlier_release_has_fewer_fields() -> None:
    """A free of version 2 named no next owner, so it counts as a write."""
    write_ = [Alloc(1, 8, 0, 0), Launch(0, 1, "k", (), (Access(1, 0, 8),), -1, 0, 0, 1)]
    short = b"\x93" + bytes((CODES[Free],)) + b"\x01\x05"
    detector = RaceDetector(engine="native")
    detector.feed(0, write_)
    detector.feed(0, Encoded(short, (len(short),), "it"))
    (race,) = detector.findings()
    assert (race.kind, race.second.access, race.examples[0].second.op) == ("freed", "free", None)


def test_a_part_that_ends_in_the_middle_is_refused() -> None:
    with pytest.raises(ValueError, match="^a part ends in the middle$"):
        RaceDetector(engine="native").feed(0, [Onward(1, 0, -1)])


def test_a_file_is_judged_without_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for them but the check of each file's beginning: the bytes go from the file to the engine."""
    monkeypatch.setenv("STREAMRACE_ENGINE", "native")
    write(story_of(2, steps=60), tmp_path)
    races, decoded = find_races(tmp_path), []
    plain = Encoded._decoded

    def watched(batch: Encoded) -> list[TraceRecord]:
        decoded.append(batch)
        return plain(batch)

    monkeypatch.setattr(Encoded, "_decoded", watched)
    assert find_races(tmp_path) == races
    assert len({id(one) for one in decoded}) == 2
    total = sum(1 for rank in (0, 1) for _ in TraceReader(file_of(tmp_path, rank)).read())
    assert total > 300


class Others:
    """Reads records, and changes none."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def feed(self, rank: int, records: Any) -> None:
        self.records += records


def test_what_is_left_out_or_put_in_reaches_all_readers_alike(tmp_path: Path) -> None:
    """The engine gets the bytes of the records that the others get."""
    write(story_of(1, steps=6), tmp_path)

    def keep(rank: int, record: TraceRecord) -> bool:
        return not isinstance(record, (Label, Phase))

    def as_if(rank: int, record: TraceRecord) -> TraceRecord:
        return record._replace(name="renamed") if isinstance(record, StreamName) else record

    class Engine(Others):
        def __init__(self) -> None:
            super().__init__()
            self.data = b""

        def feed(self, rank: int, records: Any) -> None:
            self.data += records.data

    others, engine = Others(), Engine()
    read(tmp_path, [others, engine], keep=keep, as_if=as_if)
    plain = [as_if(0, one) for one in TraceReader(file_of(tmp_path, 0)).read() if keep(0, one)]
    assert others.records == plain and any(isinstance(one, StreamName) and one.name == "renamed" for one in plain)
    assert engine.data == encode(plain)
