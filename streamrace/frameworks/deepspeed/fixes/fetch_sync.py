"""Makes the host wait in front of each all-gather that reads secondary partitions."""

from __future__ import annotations

from typing import Any

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class FetchSync(Ordering):
    where = Where.FETCH
    what = "the host waits for the compute stream, if secondaries are read"
    cures = True

    def at_fetch(self, parameters: list[Any]) -> None:
        self.device.current_stream().synchronize()
