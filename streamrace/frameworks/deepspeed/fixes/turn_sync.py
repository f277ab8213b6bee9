"""Makes the host wait once in each micro-batch, where the backward pass begins.

Not a cure: during the forward pass DeepSpeed prefetches what the backward pass reads first, which includes parameters
released early in the same pass (partitioned_param_coordinator.py, the prefetch in ``_fetch_sub_module_impl``).
"""

from __future__ import annotations

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class TurnSync(Ordering):
    where = Where.TURN
    what = "the host waits for the compute stream"

    def at_turn(self) -> None:
        self.device.current_stream().synchronize()
