"""Dumps as torch's flight recorder writes them on a cluster (FlightRecorder.hpp, format 2.10), made without one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORLD = "0"
_C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


@dataclass
class Recorder:
    """The flight recorder of a rank. ``groups``: names, and their ranks; the first is the default group."""

    rank: int
    groups: Mapping[str, Sequence[int]]
    file: str = "/job/train.py"
    size: int = 2000
    entries: list[dict[str, Any]] = field(default_factory=list)
    _issued: int = 0
    _numbers: dict[tuple[str, bool], int] = field(default_factory=dict)

    def call(
        self, operation: str, line: int, *, group: str = WORLD, shape: Sequence[int] = (4,), out: Sequence[int] = (),
        done: bool = True, of: str = "", same: bool = False, dtype: str = "Float", **more: Any,
    ) -> None:  # fmt: skip
        """Record a call at ``line``. ``same``: coalesced with the one before. ``of``: the function that was called."""
        p2p = operation.startswith(("send", "recv")) or more.get("is_p2p", False)
        number = self._numbers.get((group, p2p), 0) + (not same)
        self._numbers[group, p2p] = number
        names = {"all_reduce_barrier": "barrier"}
        function = of or names.get(operation, operation.partition(" ")[0])
        self.entries.append(
            {
                "frames": [
                    {"name": function, "filename": _C10D, "line": 3245},
                    {"name": "wrapper", "filename": _C10D.replace("distributed_c10d", "c10d_logger"), "line": 83},
                    {"name": "step", "filename": self.file, "line": line},
                    {"name": "<module>", "filename": self.file, "line": 99},
                ],
                "record_id": self._issued,
                "pg_id": [*self.groups].index(group),
                "process_group": (group, "default_pg" if group == WORLD else f"mesh_{group}"),
                "collective_seq_id": self._numbers.get((group, False), 0),
                "p2p_seq_id": self._numbers.get((group, True), 0),
                "op_id": self._issued,
                "profiling_name": f"nccl:{operation}",
                "time_created_ns": 1_700_000_000_000_000_000 + self._issued,
                "input_sizes": [[*shape]],
                "input_dtypes": [dtype],
                "output_sizes": [[*(out or shape)]],
                "output_dtypes": [dtype],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": done,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
                **more,
            }
        )
        self._issued += 1

    def between(self, verb: str, other: int, line: int, *, done: bool = True, same: bool = False) -> None:
        arrow = "->" if verb == "send" else "<-"
        self.call(f"{verb} {self.rank}{arrow}{other}", line, done=done, same=same)

    def dump(self) -> dict[str, Any]:
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": "default_pg" if name == WORLD else "", "ranks": str([*ranks])}
                for name, ranks in self.groups.items()
                if self.rank in ranks
            },
            "comm_lib_version": "2.28.9",
            "pg_status": {"0": {"last_enqueued_collective": self._issued}} if self._issued else {},
            "entries": self.entries[-self.size :],
        }

    def write(self, folder: Path, form: str = "pickle", **changed: Any) -> Path:
        data = {**self.dump(), **changed}
        file = folder / f"nccl_trace_rank_{self.rank}{'' if form == 'pickle' else '.json'}"
        if form == "pickle":
            file.write_bytes(pickle.dumps(data, 2))
        else:  # which has no frames
            entries = [{name: value for name, value in one.items() if name != "frames"} for one in data["entries"]]
            file.write_text(json.dumps({**data, "entries": entries}))
        return file


def recorders(world: int, **groups: Sequence[int]) -> list[Recorder]:
    every = {WORLD: range(world), **groups}
    return [Recorder(rank, every) for rank in range(world)]
