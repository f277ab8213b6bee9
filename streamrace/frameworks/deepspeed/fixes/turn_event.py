"""Records one event in each micro-batch, where the backward pass begins. Not a cure, as :mod:`.turn_sync` explains."""

from __future__ import annotations

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class TurnEvent(Ordering):
    where = Where.TURN
    what = "the all-gather stream waits for the compute stream"

    def at_turn(self) -> None:
        self.let_wait(self.device.current_stream().record_event())
