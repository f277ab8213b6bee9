"""Defines the kinds of findings under stable names: other tools keep settings and history by these names."""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "stream-race/"
_TORCH = "https://docs.pytorch.org/docs/stable/"
_STREAMS = f"{_TORCH}notes/cuda.html#cuda-streams"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html"
_RECORD = f"{_TORCH}generated/torch.Tensor.record_stream.html"


class Rule(NamedTuple):
    """A kind of finding. ``title``: a few words; ``text``: meaning, and what to do; ``more``: torch's documentation."""

    id: str
    title: str
    text: str
    more: str = ""
    level: str = "error"


_NO_ORDER = (
    "Two accesses to the same memory on different streams, {which}. Nothing orders them, so another run may execute "
    "them in the opposite order. {cure}"
)
_WAIT = (
    "Let the later stream wait: an event recorded after the first access and waited for before the second, or "
    "Stream.wait_stream."
)
_OWNER = (
    "Tell the allocator of the use on the other stream with Tensor.record_stream, or let the stream that frees the "
    "memory wait for it."
)

RULES = {
    rule.id.removeprefix(PREFIX): rule
    for rule in (
        Rule(
            f"{PREFIX}write-read",
            "A read does not wait for the write before it",
            _NO_ORDER.format(which="a write and a later read", cure=_WAIT),
            _STREAMS,
        ),
        Rule(
            f"{PREFIX}read-write",
            "A write does not wait for the read before it",
            _NO_ORDER.format(which="a read and a later write", cure=_WAIT),
            _STREAMS,
        ),
        Rule(
            f"{PREFIX}write-write",
            "A write does not wait for the write before it",
            _NO_ORDER.format(which="both of them writes", cure=_WAIT),
            _STREAMS,
        ),
        Rule(
            f"{PREFIX}freed",
            "Memory is freed while a stream uses it",
            _NO_ORDER.format(which="a use and the free of the memory", cure=_OWNER),
            _RECORD,
        ),
        Rule(
            f"{PREFIX}reused",
            "Memory is handed out again while a stream uses it",
            _NO_ORDER.format(which="a use and one of the memory's next owner", cure=_OWNER),
            _RECORD,
        ),
        Rule(
            f"{PREFIX}fragile",
            "Only a wait that is there for another reason orders two accesses",
            "The two are in order as long as the program reads this value, logs it or measures here. Without that line "
            f"there is a race. {_WAIT}",
            _STREAMS,
            "warning",
        ),
        Rule(
            f"{PREFIX}stale",
            "A value is an older one, and every access is ordered",
            "The program says what a tensor must be, and it equals an earlier version of it. That is no race: what "
            "should have been copied again was not.",
        ),
        Rule(
            f"{PREFIX}wrong-bounds",
            "A value lies elsewhere than it must, and every access is ordered",
            "The program says what a tensor must be, and it has the right numbers at the wrong places. That is no "
            "race: look at the offsets.",
        ),
        Rule(
            f"{PREFIX}wrong-arithmetic",
            "A value is computed wrongly, and every access is ordered",
            "A tensor is not what the program says it must be. That is no race: look at the arithmetic.",
        ),
        Rule(
            f"{PREFIX}uninitialised",
            "A value depends on memory that nothing wrote",
            "torch.empty, Module.to_empty and resize_ return memory with its previous contents. A value that the "
            "program reads, sends or keeps as a parameter depends on them: fill the memory first, or use only the part "
            "that was written.",
            f"{_TORCH}generated/torch.empty.html",
        ),
        Rule(
            f"{PREFIX}kernel",
            "A kernel accesses memory that another of its programs uses, or that is not its own",
            "Programs of a grid may run at once and in any order, and only atomic operations order them: give each "
            "program elements of its own. An access outside of the memory of all arguments needs a mask.",
            "https://triton-lang.org/main/programming-guide/chapter-1/introduction.html",
        ),
        Rule(
            f"{PREFIX}kernel-hazard",
            "Threads of a kernel's program use one element without a barrier",
            "Which thread has which element of a block is the compiler's choice, so a value may be read before another "
            "thread has stored it, or overwritten too early: put tl.debug_barrier() between the two accesses.",
            "https://triton-lang.org/main/python-api/generated/triton.language.debug_barrier.html",
            "warning",
        ),
        Rule(
            f"{PREFIX}hang",
            "No rank can go on",
            "Each rank waits for another, or for one that has ended: they call different things as one collective, "
            "one leaves its loop early, or two ranks issue collectives of two groups in different order. All ranks of "
            "a group make the same calls, with the same sizes, in the same order.",
            _NCCL,
        ),
        Rule(
            f"{PREFIX}may-hang",
            "Collectives of several groups are issued in different order",
            "All collectives took place here. On hardware each rank may wait in its first one for the others: issue "
            "them in one order on all ranks, and sends with their receives in one batch.",
            f"{_NCCL}#using-multiple-nccl-communicators-concurrently",
        ),
        Rule(
            f"{PREFIX}graph-memory",
            "A CUDA graph uses memory that another tensor has",
            "A graph has its memory by address. A tensor that it uses was freed after the capture, or memory of its "
            "pool was overwritten as another tensor: keep the graph's tensors as long as the graph, copy a result that "
            "must outlive the next replay, and replay graphs that share a pool in the order of their capture.",
            f"{_TORCH}notes/cuda.html#cuda-graphs",
        ),
        Rule(
            f"{PREFIX}unknown",
            "Not all of the program was seen",
            "Nothing can be said of what was not found: the program failed, issued nothing to the device, or used "
            "memory in a way that is not recorded. This is not a clean run.",
            level="warning",
        ),
    )
}
