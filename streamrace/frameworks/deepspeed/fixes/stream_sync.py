"""Keeps DeepSpeed's own fix since 0.13.5 (pull request 5216, "temporary fix"): ``current_stream().synchronize()``."""

from __future__ import annotations

from streamrace.frameworks.deepspeed.fixes.ordering import Ordering, Where


class StreamSync(Ordering):
    where = Where.COPY
    what = "the host waits for the compute stream (stock DeepSpeed)"
    cures = True
    stock = True
