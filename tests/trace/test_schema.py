"""The layout of a trace stands in one place: what C++ is given is made of it, and files of before are read by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.trace.files import TraceReader, TraceWriter
from streamrace.trace.records import Launch
from streamrace.trace.schema import CODES, FIELDS, HEADER, WordKind, header

# The first elements of records in a file. To be continued, and never to be changed: files have them.
_WRITTEN = (
    "Begin Stack StreamName Group Phase Alloc Free RecordStream Label Launch Collective Record Wait HostWait End "
    "HostStep Call Transfer Initial Probe Probed Unrepeatable Seal Reuse Export Asked Onward KernelFault "
    "PoolPart GraphPart Replay Dangling KeptOutput Standstill Unrecorded"
)


def test_the_header_is_that_of_the_records() -> None:
    assert HEADER.read_text() == header(), "run python -m streamrace.trace"


def test_a_record_has_the_number_that_it_always_had() -> None:
    assert [one.__name__ for one in CODES] == _WRITTEN.split()
    assert [*CODES.values()] == [*range(len(CODES))]


@pytest.mark.parametrize("kind", FIELDS)
def test_a_layout_has_each_field_of_its_record(kind: WordKind) -> None:
    record, fields = FIELDS[kind]
    assert len(fields.split()) == len(record._fields)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    launch = Launch(0, 1, "aten::mul", ((2, 0, 64, (4, (2, 2), (8, 16))),), ((3, 0, 64, None),), -1, 5, 6, 7, 1)
    writer = TraceWriter(tmp_path / "rank0.trace", rank=0, world=1, info={"by": "a test"})
    writer.write([launch])
    writer.close()
    begin, again, _ = TraceReader(tmp_path / "rank0.trace").read()
    assert again == launch and begin[2:] == (0, 1, {"by": "a test"})
