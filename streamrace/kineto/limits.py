"""Says which part of the order a trace of torch's profiler does not have, and which option would have recorded it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from streamrace.kineto.file import CALLS, KinetoTrace
from streamrace.kineto.order import QUERIES, Order
from streamrace.trace.wording import count, plural_of

_OPTION = "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)"
_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent")
_ANSWERED = (*QUERIES, "cudaStreamQuery", "cuStreamQuery", "hipStreamQuery")


def has_waits(trace: KinetoTrace) -> bool:
    """Check whether the trace tells the waits: they were recorded, or the host's calls were and none is a wait."""
    calls = trace.of(*CALLS)
    made = any(call.get("name") in _WAITS or "Synchronize" in str(call.get("name")) for call in calls)
    return bool(trace.of("cuda_sync")) or (bool(calls) and not made)


def limits(trace: KinetoTrace, order: Order) -> Iterator[str]:
    """Yield clauses, the gravest first."""
    calls, works = trace.of(*CALLS), [work for some in order.streams.values() for work in some]
    made = Counter(str(call.get("name")) for call in calls)
    waits = sum(made[name] for name in _WAITS)
    if not works:
        yield "The work of a GPU: profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        return
    yield "Which memory a kernel reads and writes (profile_memory=True adds the allocations, and not who uses them)"
    if not has_waits(trace):
        calls_said = f", though {count(waits, 'cudaStreamWaitEvent call')} {plural_of(waits, 'is', 'are')} there"
        yield f"Waits and synchronisations{calls_said if waits else ''}: profile with {_OPTION}"
    elif (left := waits - order.waits.total() - order.unresolved["Stream Wait Event"]) > 0:
        yield f"{count(left, 'wait')} that the profiler left out, as it does for streams without work, and their order"
    if lost := order.unresolved.total():
        yield f"The events of {count(lost, 'wait')}: they were recorded before the trace began, or on another GPU"
    if queries := sum(made[name] for name in _ANSWERED):
        asked = count(queries, "query", "queries")
        yield f"The answers of {asked} of events and streams, for which the host may have waited"
    graphs = Counter(work.correlation for work in works)
    if inside := sum(number for number in graphs.values() if number > 1):
        yield f"The order within CUDA graphs: {count(inside, 'kernel')} of graphs stand here as their streams ran them"
    if unlaunched := sum(work.launch is None for work in works):
        yield f"The launch of {count(unlaunched, 'kernel or copy', 'kernels and copies')}, made before the trace began"
    if len({str(call.get("tid")) for call in calls}) > 1:
        yield "The order between threads of the host: a thread may have waited for another one's synchronisation"
    if len({stream.device for stream in order.streams}) > 1:
        yield "Order between GPUs: each is told by itself"
    yield "Order that CUDA makes by itself: the legacy default stream's, cudaFree's, that of copies of pageable memory"
    world = trace.head.get("distributedInfo")
    size = world.get("world_size") if isinstance(world, dict) else None
    if type(size) is int and size > 1:
        yield f"The order between ranks: this is the trace of one of {size}"
    if not trace.of("python_function"):
        yield "The lines of the program: profile with with_stack=True"
