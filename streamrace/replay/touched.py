"""Determines the memory that has to be reset before a replay."""

from __future__ import annotations

from collections.abc import Sequence

from streamrace.device.probes import READ
from streamrace.replay.host import HOST, Effect
from streamrace.replay.recording import Recording
from streamrace.trace.records import Access, Alloc, Call, Collective, Launch, Probe

BlockKey = tuple[int, int]
"""Rank and block number."""


def touched(recording: Recording, effects: Sequence[Effect]) -> set[BlockKey]:
    """Return the blocks to reset before ``effects`` (in the order of issue) are executed again.

    Left out is a block that only one stream touches and first writes as a whole: a stream executes in order, so in
    every timing that write comes before all other accesses, and the previous content is never seen.
    """
    operations: dict[tuple[int, int], Launch | Collective] = {}
    calls: dict[tuple[int, int], Call] = {}
    probes: dict[tuple[int, int], Probe] = {}
    sizes: dict[BlockKey, int] = {}
    for rank, records in recording.records.items():
        for record in records:
            if isinstance(record, (Launch, Collective)):
                operations[rank, record.op] = record
            elif isinstance(record, Call):
                calls[rank, record.op] = record
            elif isinstance(record, Probe) and record.kind != READ:
                probes[rank, record.probe] = record
            elif isinstance(record, Alloc):
                sizes[rank, record.block] = record.nbytes
    streams: dict[BlockKey, set[int]] = {}
    begins: dict[BlockKey, bool] = {}  # whether the first access writes the whole block

    def note(rank: int, block: int, stream: int, *, whole: bool) -> None:
        streams.setdefault((rank, block), set()).add(stream)
        begins.setdefault((rank, block), whole)

    for effect in effects:
        rank = effect.rank
        if effect.what == "back":
            continue
        if effect.what in ("inherit", "inherited"):
            note(rank, effect.item, HOST, whole=False)
        elif effect.what == "probe":
            probe = probes[rank, effect.item]
            note(rank, probe.view[0], probe.stream, whole=False)
        else:
            record = operations[rank, effect.item]
            for access in record.reads:
                note(rank, access[0], record.stream, whole=False)
            call = calls.get((rank, effect.item))
            outputs = {view[0] for view in call.outputs} if call is not None else set()
            for access in record.writes:  # a block that is written in place may be read first
                whole = access[0] in outputs and _all(access, sizes.get((rank, access[0]), -1))
                note(rank, access[0], record.stream, whole=whole)
            if call is not None and call.host:  # the host's own output is no access of the launch
                for block in outputs:
                    note(rank, block, HOST, whole=False)
    return {block for block, users in streams.items() if len(users) > 1 or not begins[block] or HOST in users}


def _all(access: Access, nbytes: int) -> bool:
    _, lo, hi, layout = access
    return lo == 0 and hi == nbytes and layout is None
