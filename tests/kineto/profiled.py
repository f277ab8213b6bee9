"""Traces as torch's profiler writes them, call by call, with what CUPTI tells of each: the stories of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SYNCS = {"Stream Sync": "cudaStreamSynchronize", "Event Sync": "cudaEventSynchronize"}


class Profiled:
    """A process under the profiler. Each call is numbered, takes 4 us of the host and comes 10 us after the last."""

    def __init__(self, *, syncs: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
        self.calls = 0
        self._syncs = syncs

    @property
    def now(self) -> float:
        return 10.0 * self.calls

    def call(self, name: str, thread: int = 1) -> dict[str, Any]:
        self.calls += 1
        lane = {"ph": "X", "cat": "cuda_runtime", "pid": 9, "tid": thread}
        self.events.append({**lane, "name": name, "ts": self.now, "dur": 4.0, "args": {"correlation": self.calls}})
        return {"correlation": self.calls, "device": 0, "context": 1}

    def work(
        self, name: str, stream: int, *, us: float = 2.0, at: float | None = None, thread: int = 1, **args: Any
    ) -> int:
        """A kernel that starts ``at`` its time, or 5 us after it was launched."""
        common = self.call("cudaLaunchKernel", thread) | {"stream": stream} | args
        start = self.now + 5 if at is None else at
        lane = {"ph": "X", "cat": "gpu_memcpy" if name.startswith("Memcpy") else "kernel", "pid": 0, "tid": stream}
        self.events.append({**lane, "name": name, "ts": start, "dur": us, "args": common})
        return self.calls

    def record(self, thread: int = 1) -> int:
        self.call("cudaEventRecord", thread)
        return self.calls

    def wait(self, stream: int, event: int, of: int, thread: int = 1) -> None:
        marks = {"wait_on_stream": of, "wait_on_cuda_event_record_corr_id": event, "wait_on_cuda_event_id": 3}
        self.sync("Stream Wait Event", "cudaStreamWaitEvent", thread, stream=stream, **marks)

    def host(
        self, kind: str, *, stream: int = -1, event: int = -1, of: int = -1, thread: int = 1, call: str = ""
    ) -> None:
        marks = {"wait_on_stream": of, "wait_on_cuda_event_record_corr_id": event} if kind == "Event Sync" else {}
        self.sync(kind, call or SYNCS.get(kind, "cudaDeviceSynchronize"), thread, stream=stream, **marks)

    def sync(self, kind: str, call: str, thread: int, **args: Any) -> None:
        common = self.call(call, thread) | args | {"cuda_sync_kind": kind}
        if self._syncs:
            lane = {"ph": "X", "cat": "cuda_sync", "pid": 0, "tid": args["stream"]}
            self.events.append({**lane, "name": kind, "ts": self.now, "dur": 3.0, "args": common})

    def around(self, name: str, category: str, *, calls: int = 1, thread: int = 1) -> None:
        """An operator or a line of the program around the last ``calls`` calls."""
        lane = {"ph": "X", "cat": category, "pid": 9, "tid": thread}
        begin = self.now - 10 * (calls - 1) - 1 - len(name) / 1000
        self.events.append({**lane, "name": name, "ts": begin, "dur": 10.0 * calls, "args": {}})

    def text(self) -> str:
        return json.dumps({**self.head, "traceEvents": self.events})

    def write(self, folder: Path, name: str = "trace.json") -> Path:
        (folder / name).write_text(self.text())
        return folder / name
