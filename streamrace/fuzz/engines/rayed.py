"""Runs workers of a Ray cluster: for campaigns on more than one machine.

Every machine of the cluster needs this project installed in the same state. The recording goes to the workers through
Ray's object store; their trials come back through a queue. Diverging timings are kept in the example database of the
machine that started the campaign.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from streamrace.fuzz.campaign import Share, Trial, explore
from streamrace.fuzz.engines import EngineError, Explore
from streamrace.fuzz.subject import Subject

_POLL_S = 1.0


def on_ray(trace: Path) -> Explore:
    """Return an engine for the cluster that runs here or at ``RAY_ADDRESS``. ``trace``: the recording's folder.

    Raises :class:`EngineError` without Ray, or without a cluster.
    """
    ray = _ray()
    if not ray.is_initialized():
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            raise EngineError(
                "no Ray cluster was found: run 'ray start --head' here (and 'ray start --address=...' on the other "
                "machines), or set RAY_ADDRESS"
            ) from None
    return partial(_explore, trace)


def _explore(trace: Path, shares: Sequence[Share]) -> Iterator[tuple[Share, Trial]]:
    ray, queues = _ray(), import_module("ray.util.queue")
    files = ray.put({path.name: path.read_bytes() for path in sorted(trace.glob("*.trace"))})
    queue = queues.Queue()
    work = ray.remote(_work)
    try:
        running = [work.remote(files, share, queue) for share in shares]
        while running or not queue.empty():
            try:
                yield queue.get(timeout=_POLL_S if running else 0.0)
            except queues.Empty:
                done, running = ray.wait(running, num_returns=len(running), timeout=0)
                for task in done:
                    ray.get(task)
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise EngineError(f"a worker of the Ray cluster failed: {str(error).strip().splitlines()[-1]}") from error
    finally:
        queue.shutdown(force=True)


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise EngineError("Ray is not installed: run 'pip install ray', or leave --engine ray out") from None


def _work(files: Mapping[str, bytes], share: Share, queue: Any) -> None:
    key = sha256(b"".join(files[name] for name in sorted(files))).hexdigest()
    subject = _subject(_Recording(key, files))
    explore(subject, share, lambda trial: queue.put((share, trial)))


class _Recording:
    """The files of a recording, compared by ``key`` (a hash of their content), so that a worker reads them once."""

    def __init__(self, key: str, files: Mapping[str, bytes]) -> None:
        self.key = key
        self.files = files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recording) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@cache
def _subject(recording: _Recording) -> Subject:
    import torch

    torch.set_num_threads(1)  # sums must not depend on the machine's cores
    with tempfile.TemporaryDirectory() as folder:
        for name, data in recording.files.items():
            (Path(folder) / name).write_bytes(data)
        return Subject.load(Path(folder))
