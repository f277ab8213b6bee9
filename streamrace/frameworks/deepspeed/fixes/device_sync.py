"""Makes the host wait for the whole device behind each copy (arXiv 2407.01614)."""

from __future__ import annotations

from typing import Any

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class DeviceSync(Ordering):
    where = Where.COPY
    what = "the host waits for every stream (arXiv 2407.01614)"
    cures = True

    def after_copy(self, stream: Any) -> None:
        self.device.synchronize()
