"""Recordings that are cut off, foreign, or tampered with: one sentence, nothing executed, no crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.device import Device
from streamrace.replay.faults import ReplayError
from streamrace.replay.record import record
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.records import Begin, Call, Initial, Launch, Probed, TraceRecord
from tests.examples import examples


def small(device: Device) -> None:
    table = torch.arange(12.0, device="cuda").reshape(4, 3)
    rows = torch.nn.functional.embedding(torch.tensor([1, 3], device="cuda"), table * 2)
    device.probe("loss", "", rows.sum(), lambda value: None)


@cache
def whole() -> Sequence[TraceRecord]:
    return record(small).records[0]


def written(folder: Path, records: Sequence[TraceRecord]) -> Path:
    """The records as a recording of one rank, sealed like any other."""
    begin = records[0]
    assert isinstance(begin, Begin)
    writer = TraceWriter(file_of(folder, 0), rank=0, world=1, info=begin.info)
    writer.write(records[1:])
    writer.close()
    return folder


def test_whole_it_is_fine(tmp_path: Path) -> None:
    assert Replayer(Recording.load(written(tmp_path, whole()))).verify().departure is None


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cut_off(part: float, tmp_path: Path) -> None:
    path = file_of(written(tmp_path, whole()), 0)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ReplayError):
        Recording.load(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x80\x04\x95.", b"\x91\x00", b"\xc1" * 50, b"PK\x03\x04" + bytes(100), bytes(4096)]
)
def test_foreign(data: bytes, tmp_path: Path) -> None:
    file_of(tmp_path, 0).write_bytes(data)
    with pytest.raises(ReplayError):
        Recording.load(tmp_path)


def test_of_another_format(tmp_path: Path) -> None:
    begin = whole()[0]
    assert isinstance(begin, Begin)
    writer = TraceWriter(file_of(tmp_path, 0), rank=0, world=1, info={})
    writer.close()
    data = file_of(tmp_path, 0).read_bytes()
    file_of(tmp_path, 0).write_bytes(data.replace(bytes([begin.version, 0, 1]), bytes([99, 0, 1]), 1))
    with pytest.raises(ReplayError, match="format version 99"):
        Recording.load(tmp_path)


@examples(60)
@given(st.data())
def test_any_byte_that_was_changed_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = file_of(written(tmp_path_factory.mktemp("changed"), whole()), 0)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(ReplayError):
        Recording.load(path.parent)


def test_a_rank_that_is_missing(tmp_path: Path) -> None:
    begin = whole()[0]
    assert isinstance(begin, Begin)
    writer = TraceWriter(file_of(tmp_path, 0), rank=0, world=2, info=begin.info)
    writer.write(whole()[1:])
    writer.close()
    with pytest.raises(ReplayError, match="run with 2 ranks"):
        Recording.load(tmp_path)


# -- tampered with, and sealed again -----------------------------------------------------------------------------


def changed(kind: type[Any], change: Callable[[Any], Any]) -> list[TraceRecord]:
    """The records, the first of that kind that ``change`` changes another one."""
    records: list[TraceRecord] = list(whole())
    for at, one in enumerate(records):
        if isinstance(one, kind) and change(one) != one:
            records[at] = change(one)
            return records
    raise AssertionError(f"nothing to change in any {kind}")


@pytest.mark.parametrize(
    "function",
    [
        "aten::from_file.default", "os::system.default", "aten::add", "aten::__class__.default", "", "aten::",
        "profiler::_record_function_enter.default", "aten::add.NoSuch", "a" * 1000, "aten::_C.default",
        "stream_races::no_such.default", "stream_races::default", "stream_races::__class__.default",
    ],
)  # fmt: skip
def test_operators_that_are_none_or_do_more_than_compute(function: str) -> None:
    records = changed(Call, lambda call: call._replace(function=function))
    with pytest.raises(ReplayError):
        Replayer(Recording.of({0: records})).verify()


VIEWS = st.tuples(
    st.integers(-1, 20),
    st.sampled_from(["float32", "int64", "uint8", "no", "complex128", ""]),
    st.lists(st.integers(-2, 1 << 40), max_size=3).map(tuple),
    st.lists(st.integers(-2, 1 << 40), max_size=3).map(tuple),
    st.integers(-5, 1 << 60),
    st.booleans(),
    st.booleans(),
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.tuples(st.sampled_from(["tensor", "list", "dtype", "device", "complex", "?"]), inner | VIEWS)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


@examples(200)
@given(st.lists(DATA, max_size=4).map(tuple), st.lists(VIEWS, max_size=2).map(tuple))
def test_arguments_that_make_no_sense(args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    records = changed(Call, lambda call: call._replace(args=args, outputs=outputs) if "mul" in call.function else call)
    with pytest.raises(ReplayError):
        Replayer(Recording.of({0: records})).verify()


def test_times_that_do_not_follow() -> None:
    records = changed(Launch, lambda launch: launch._replace(end=launch.end + 1))
    with pytest.raises(ReplayError, match="recorded times do not follow"):
        Replayer(Recording.of({0: records}))


def test_values_that_are_others() -> None:
    other = changed(Probed, lambda seen: seen._replace(checksum=seen.checksum ^ 1))
    with pytest.raises(ReplayError, match="recorded bits"):
        Replayer(Recording.of({0: other})).verify()
    indices = changed(Initial, lambda one: one._replace(data=bytes(len(one.data))) if len(one.data) == 16 else one)
    with pytest.raises(ReplayError, match="recorded bits"):
        Replayer(Recording.of({0: indices})).verify()


def test_indices_beyond_the_table() -> None:
    far = (1 << 40).to_bytes(8, "little") * 2
    records = changed(Initial, lambda one: one._replace(data=far) if len(one.data) == 16 else one)
    with pytest.raises(ReplayError):
        Replayer(Recording.of({0: records})).verify()
