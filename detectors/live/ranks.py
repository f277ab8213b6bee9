"""Reports findings between ranks, outside of training: through the store of ``torch.distributed``.

No collective is issued, so no stream, no process group and no order of training is touched. Each rank
writes one short line per step under its own key and, only when some rank raised the alarm, reads the
others'. A healthy step costs a write and a query.

The lines are JSON: data from another process is never executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from streamrace.detectors.live.finding import Finding

_PATIENCE_S = 1800.0  # as long as a collective of the program itself would wait for the others
KEPT = 4  # steps whose reports can be read


class Ranks:
    """The other ranks of the default process group.

    ``name`` distinguishes several watches of one program; it must be the same on all ranks.
    """

    def __init__(self, name: str) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._store = dist.PrefixStore(f"streamrace/{name}", _get_default_store())

    def report(self, step: int, finding: Finding | None, digest: str) -> None:
        """Report this rank's step to the others. ``digest``: must be equal on all ranks, or ''."""
        line = {"finding": finding.as_dict() if finding else None, "digest": digest}
        self._store.set(f"step/{step}/{self.rank}", json.dumps(line))
        if finding is not None:
            self.raise_alarm(step)
        if step > KEPT:
            self._store.delete_key(f"step/{step - KEPT}/{self.rank}")

    def raise_alarm(self, step: int) -> None:
        self._store.set("alarm", str(step))

    def alarm(self) -> int | None:
        """Return the last step in which some rank has a finding; None if no rank has."""
        return int(self._store.get("alarm")) if self._store.check(["alarm"]) else None

    def neighbour(self, step: int) -> str | None:
        """Return the digest of the next rank, or None if the rank has not reported."""
        key = f"step/{step}/{(self.rank + 1) % self.world}"
        return str(json.loads(self._store.get(key))["digest"]) if self._store.check([key]) else None

    def show(self, step: int, table: Mapping[str, Sequence[Any]]) -> None:
        """Publish all checksums of the step to the others: the digests differ."""
        self._store.set(f"table/{step}/{self.rank}", json.dumps(table))

    def shown(self, step: int) -> list[dict[str, list[Any]]] | None:
        """Return the tables that all ranks published for the step, by rank; None while a rank has not."""
        return self._of_all_ranks(f"table/{step}")

    def wait(self, kind: str, step: int, seconds: float) -> None:
        """Wait for the others' reports ("step") or tables ("table") of the step. Only when the watch ends."""
        with suppress(dist.DistError, RuntimeError):
            self._store.wait([f"{kind}/{step}/{rank}" for rank in range(self.world)], timedelta(seconds=seconds))

    def reports(self, step: int) -> list[dict[str, Any]] | None:
        """Return all ranks' reports of the step, by rank; None while a rank has not reported."""
        return self._of_all_ranks(f"step/{step}")

    def _of_all_ranks(self, prefix: str) -> list[dict[str, Any]] | None:
        keys = [f"{prefix}/{rank}" for rank in range(self.world)]
        if not self._store.check(keys):
            return None
        lines: Sequence[bytes] = self._store.multi_get(keys)
        return [json.loads(line) for line in lines]


class StopTogether:
    """Lets all ranks stop at the same step. A rank that stopped alone would leave the others in a collective for ever.

    Ranks learn of a finding one step apart, so each reports at the end of a step whether it has, and all act on the
    reports of the end of the step before. They use the store: a collective would order streams.
    """

    def __init__(self, name: str, *, wanted: bool) -> None:
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._ranks = Ranks(name) if several and wanted else None
        self._steps = 0

    def at_step_end(self, stopped: bool) -> bool:
        """Report whether this rank wants to stop; return True when all do. Waits for the reports of the step before."""
        self._steps += 1
        ranks, previous = self._ranks, self._steps - 1
        if ranks is None:
            return stopped
        ranks.report(self._steps, None, "stop" if stopped else "")
        if not previous:
            return False
        ranks.wait("step", previous, _PATIENCE_S)
        return any(line["digest"] for line in ranks.reports(previous) or [])
