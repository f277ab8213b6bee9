"""Allocates up to a limit of the device's memory, and beyond; prints the errors, the allocator's figures and addresses.

What is cached goes back to the driver before an allocation fails, and so does memory that another stream may use.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

MIB = 1 << 20
LIMIT = 256 * MIB
# The simulated device has the current figures of split blocks only, and no history of them.
_LEFT_OUT = ("inactive_split.", "inactive_split_bytes.")
seen: dict[int, int] = {}
given_back = 0  # segments


def number(address: int) -> int:
    """Return the number of an address, counted since memory last went back to the driver, which decides the next."""
    global given_back
    now = torch.cuda.memory_stats()["num_device_free"]
    if now != given_back:
        given_back = now
        seen.clear()
    return seen.setdefault(address, len(seen))


def figures(when: str) -> None:
    print(when, "reserved", torch.cuda.memory_reserved(), "allocated", torch.cuda.memory_allocated())
    for name, value in torch.cuda.memory_stats().items():
        if value and not (name.startswith(_LEFT_OUT) and not name.endswith("current")):
            print(when, name, value)


def ask(mib: float, side: torch.cuda.Stream | None = None) -> Tensor | None:
    """Allocate memory; print the number of its address, or the error."""
    try:
        with torch.cuda.stream(side):
            made = torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(mib, "MiB:", str(error).partition(" unallocated.")[0])  # then comes advice, which differs
        return None
    print(mib, "MiB: block", number(made.data_ptr()))
    return made


def up_to_the_limit() -> None:
    kept = [ask(mib) for mib in (100, 100, 30, 24, 1, 1)]
    figures("full")
    kept[1] = None
    kept += [ask(101), ask(60), ask(39), ask(2)]


def cached_blocks_go_back() -> None:
    kept = [ask(mib) for mib in (20, 30, 40, 50, 60)]
    kept = kept[2:3]
    figures("cached")
    kept.append(ask(200))
    figures("retried")
    kept.append(ask(30))


def parts_of_segments_stay() -> None:
    kept = [ask(5) for _ in range(40)]
    del kept[::2]
    figures("in parts")
    kept += [ask(100), ask(50), ask(5.5)]
    figures("after parts")


def pools_of_streams() -> None:
    side = torch.cuda.Stream()
    first = ask(150, side)
    del first
    kept = [ask(150), ask(90, side), ask(90)]
    figures("of two streams")
    del kept


def memory_that_a_stream_uses() -> None:
    side = torch.cuda.Stream()
    x = ask(150)
    assert x is not None
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.fill_(1)
    x.record_stream(side)
    del x
    kept = ask(160)
    figures("used")
    del kept


def a_smaller_and_a_larger_limit() -> None:
    kept = [ask(100)]
    limit(64 * MIB)
    kept.append(ask(1))
    del kept[:]
    kept.append(ask(50))
    figures("smaller")
    limit(2 * LIMIT)
    kept += [ask(300), ask(200)]
    figures("larger")
    print(torch.cuda.get_per_process_memory_fraction())


def at_random() -> None:
    drawn = random.Random(2)
    live: list[Tensor | None] = []
    for step in range(300):
        if live and drawn.random() < 0.4:
            live.pop(drawn.randrange(len(live)))
        elif drawn.random() < 0.02:
            torch.cuda.empty_cache()
        else:
            live.append(ask(drawn.choice([0.1, 0.9, 1.5, 4, 9, 15, 40]) * (1 + drawn.randrange(10) / 10)))
        if step % 50 == 0:
            figures(f"random {step}")


def limit(nbytes: int) -> None:
    torch.cuda.set_per_process_memory_fraction(nbytes / torch.cuda.get_device_properties(0).total_memory)


parts: list[Callable[[], None]] = [
    up_to_the_limit,
    cached_blocks_go_back,
    parts_of_segments_stay,
    pools_of_streams,
    memory_that_a_stream_uses,
    a_smaller_and_a_larger_limit,
    at_random,
]
for part in parts:
    limit(LIMIT)
    torch.cuda.reset_peak_memory_stats()
    part()
    figures(f"{part.__name__} freed")
    torch.cuda.empty_cache()
    figures(f"{part.__name__} emptied")
