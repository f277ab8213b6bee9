"""Runs a test once on this machine's GPU, recorded, and judges the recording (:mod:`streamrace.recorder`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamrace.detectors import RaceDetector
from streamrace.detectors.confidence.unrecorded import UnrecordedWork
from streamrace.fuzz.testing.lines import race_lines
from streamrace.recorder import GpuRecorder, RecorderError
from streamrace.recorder.launch import gpu_name
from streamrace.trace import wording
from streamrace.trace.encoding import Packed, decode
from streamrace.trace.records import TraceRecord

_SKIPPED = ("/_pytest/python.py", "/pluggy/_callers.py", "fuzz/testing/plugin.py", "fuzz/testing/on_gpu.py")


def check(body: Callable[[], object], note: Callable[[str], None]) -> str | None:
    """Return the report on the races of ``body``; None if there are none. ``note``: gets what was not seen.

    What the body raises is raised.
    """
    records: list[TraceRecord] = []

    def write(made: list[Any]) -> None:
        for record in made:
            records.extend(decode(record.data) if isinstance(record, Packed) else [record])

    recorder = GpuRecorder(write, skipped=_SKIPPED)
    try:
        gpu_name()
        recorder.start()
    except RecorderError as problem:
        return str(problem)
    try:
        body()
    finally:
        recorder.stop()
    races, unrecorded = RaceDetector(), UnrecordedWork()
    for detector in (races, unrecorded):
        detector.feed(0, records)
        detector.finish()
    for unseen in unrecorded.findings():
        note(f"not seen: {unseen}")
    if not races.races:
        return None
    found = [line for number, race in enumerate(races.races, 1) for line in (f"Race {number}:", *race_lines(race))]
    return "\n".join([f"On this machine's GPU, {wording.count(len(races.races), 'race')}:", *found])
