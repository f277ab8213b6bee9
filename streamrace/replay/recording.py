"""Reads a recorded run: the traces of all ranks, with their calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from streamrace.device.hardware import HardwareTiming, Profile
from streamrace.device.recording import DEVICE
from streamrace.device.seals import sealed
from streamrace.replay.device_timing import Deviation, DeviceTiming
from streamrace.replay.faults import ReplayError
from streamrace.replay.names import Names
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Begin, End, TraceError, TraceRecord, Unrepeatable

_FILE = re.compile(r"rank(\d+)\.trace")


@dataclass(frozen=True)
class Recording:
    """A recorded run. ``records``: by rank, in the order of the host."""

    records: Mapping[int, Sequence[TraceRecord]]
    timing: DeviceTiming
    info: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path, *, calls: bool = True) -> Recording:
        """Load the recording in ``folder`` (``rank0.trace``, ...). Raises :class:`ReplayError`.

        Without ``calls`` any whole trace is accepted, also of a dry run: its work can be timed again, not executed.
        """
        paths = {int(name[1]): path for path in folder.glob("rank*.trace") if (name := _FILE.fullmatch(path.name))}
        if not paths:
            raise ReplayError(
                f"there is no recording in {folder}: record a run first, with 'streamrace fuzz' or 'streamrace run'"
            )
        records: dict[int, Sequence[TraceRecord]] = {}
        for rank, path in sorted(paths.items()):
            reader = None
            try:
                reader = TraceReader(path)
                records[rank] = list(reader.read())
                if not sealed(path):
                    raise ReplayError(f"{path} is incomplete or was changed: record the run again")
            except (TraceError, OSError) as error:
                raise ReplayError(str(error)) from error
            finally:
                if reader is not None:
                    reader.close()
        return cls.of(records, str(folder), calls=calls)

    @classmethod
    def of(
        cls, records: Mapping[int, Sequence[TraceRecord]], where: str = "the recording", *, calls: bool = True
    ) -> Recording:
        """Build a recording from records in memory. Raises :class:`ReplayError`."""
        info: Mapping[str, Any] = {}
        infos: list[Mapping[str, Any]] = []
        for rank, rank_records in records.items():
            begin = rank_records[0] if rank_records else None
            if not isinstance(begin, Begin) or begin.rank != rank:
                raise ReplayError(f"{where}: the trace of rank {rank} does not begin as one")
            mirrored = bool(begin.info.get("mirrored")) and not calls  # one rank stands for all
            if mirrored and list(records) == [0]:
                pass
            elif begin.world != len(records) or sorted(records) != list(range(begin.world)):
                raise ReplayError(
                    f"{where} has {len(records)} traces of a run with {begin.world} ranks: it is incomplete"
                )
            if not any(isinstance(record, End) for record in reversed(rank_records)):
                raise ReplayError(f"{where}: the trace of rank {rank} has no end: the run was cut off, record it again")
            refused = next((record for record in rank_records if isinstance(record, Unrepeatable)), None)
            if refused is not None:
                raise ReplayError(f"{where} cannot be replayed: {refused.reason}")
            info = begin.info
            infos.append(info)
        if isinstance(infos[0].get("timing"), Mapping):
            raise ReplayError(f"{where} is of an older release, which simulated another device: record the run again")
        if infos[0].get("device") != DEVICE or (calls and not infos[0].get("recorded")):
            raise ReplayError(f"{where} says when work ran, not what it was: record the run to replay it")
        return cls(records, DeviceTiming.of(records, infos), info)

    def deviated(self, deviations: Sequence[Deviation]) -> DeviceTiming:
        """Return the recorded timing, changed by ``deviations``. Raises UnknownOperation and ValueError."""
        return self.timing.deviated(deviations, self.records, self.names)

    @property
    def by_profile(self) -> HardwareTiming:
        """Return the machine. Raises :class:`ReplayError` if the run was not timed by a hardware profile."""
        return self.timing.by_profile

    def on(self, profile: Profile) -> DeviceTiming:
        """Return the recorded timing on another machine (:meth:`DeviceTiming.on`). Raises :class:`ReplayError`."""
        return self.timing.on(replace(self.by_profile, profile=profile))

    @property
    def world(self) -> int:
        return len(self.records)

    @cached_property
    def names(self) -> Names:
        return Names.of(self.records)
