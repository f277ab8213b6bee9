"""Says which part of the order a trace of torch's profiler does not have, and which option would have recorded it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from streamrace.kineto.file import CALLS, KinetoTrace, args
from streamrace.kineto.order import QUERIES, RECORDED, SYNCS, Order
from streamrace.trace.wording import count, plural_of

_OPTION = "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)"
_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent")
_ANSWERED = (*QUERIES, "cudaStreamQuery", "cuStreamQuery", "hipStreamQuery")


def has_waits(trace: KinetoTrace) -> bool:
    """Check whether waits and synchronisations were recorded, with the events for which streams wait."""
    syncs = trace.of(SYNCS)  # the profiler's own end is among them
    return bool(syncs) and all(RECORDED in args(sync) for sync in syncs if sync.get("name") == "Stream Wait Event")


def limits(trace: KinetoTrace, order: Order) -> Iterator[str]:
    """Yield clauses, the gravest first."""
    works = [work for some in order.streams.values() for work in some]
    if not works:
        yield "The work of a GPU: profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        return
    yield "Which memory a kernel reads and writes (profile_memory=True adds the allocations, and not who uses them)"
    made = Counter(str(call.get("name")) for call in trace.of(*CALLS))
    waits = sum(made[name] for name in _WAITS)
    if has_waits(trace):
        yield from _of_order(order, waits, sum(made[name] for name in _ANSWERED))
    else:
        there = f", though {count(waits, 'cudaStreamWaitEvent call')} {plural_of(waits, 'is', 'are')} there"
        yield f"Waits and synchronisations{there if waits else ''}: profile with {_OPTION}, torch 2.2 or newer"
    if len({stream.device for stream in order.streams}) > 1:
        yield "Order between GPUs: each is told by itself"
    world = trace.head.get("distributedInfo")
    size = world.get("world_size") if isinstance(world, dict) else None
    if type(size) is int and size > 1:
        yield f"The order between ranks: this is the trace of one of {size}"
    if not trace.of("python_function"):
        yield "The lines of the program: profile with with_stack=True"


def _of_order(order: Order, waits: int, queries: int) -> Iterator[str]:
    """Yield what is lacking where waits were recorded. ``waits``, ``queries``: calls of the host."""
    works = [work for some in order.streams.values() for work in some]
    if (left := waits - order.waits.total() - order.unresolved["Stream Wait Event"]) > 0:
        yield f"{count(left, 'wait')} that the profiler left out, as it does for streams without work, and their order"
    if lost := order.unresolved.total():
        yield f"The events of {count(lost, 'wait')}: recorded before the trace began, or on another GPU"
    if queries:
        asked = count(queries, "query", "queries")
        yield f"The answers of {asked} of events and streams, for which the host may have waited"
    if shared := sum(number for number in Counter(work.correlation for work in works).values() if number > 1):
        yield f"The order within a launch: {shared:,} kernels share one, as in a CUDA graph, and stand as they ran"
    if unlaunched := sum(work.launch is None for work in works):
        yield f"The launch of {count(unlaunched, 'kernel or copy', 'kernels and copies')}, made before the trace began"
    if len({str(work.launch.get("tid")) for work in works if work.launch is not None}) > 1:
        yield "The order between threads of the host: a thread may have waited for another one's synchronisation"
    yield "Order that CUDA makes by itself: the legacy default stream's, cudaFree's, that of copies of pageable memory"
