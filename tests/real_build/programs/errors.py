"""Misuses torch.cuda in the ways that its own code notices; prints the types of the errors and their first lines."""

from __future__ import annotations

from collections.abc import Callable

import torch

event, timed, again = torch.cuda.Event(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
x = torch.ones(3, device="cuda")

MISUSES: list[Callable[[], object]] = [
    lambda: timed.elapsed_time(again),
    lambda: (timed.record(), timed.elapsed_time(again)),
    lambda: event.elapsed_time(timed),
    lambda: torch.cuda.get_device_properties(5),
    lambda: x + torch.ones(3),
    lambda: x.numpy(),
    lambda: torch.empty(3, device="cuda", pin_memory=True),
    lambda: x.pin_memory(),
    lambda: torch.cuda.Stream(device="cpu"),
    lambda: torch.ones(3)[torch.tensor([1], device="cuda")],
    lambda: torch.ones(3).copy_(torch.ones(4, device="cuda")),
    lambda: torch.cuda.set_per_process_memory_fraction(2.0),
    lambda: torch.cuda.memory_allocated("cpu"),
    lambda: torch.cuda.current_stream(3),
    lambda: x.record_stream(1),
    lambda: x.view(2),
    lambda: x.data_ptr() and torch.ones(2, device="cuda") @ x,
]

for misuse in MISUSES:
    try:
        print("no error", misuse())
    except Exception as error:
        print(type(error).__name__, str(error).partition("\n")[0])

# Only the types: the texts name an index as a character, or say how to have more devices.
NO_DEVICE: list[Callable[[], object]] = [
    lambda: torch.cuda.set_device(5),
    lambda: torch.cuda.synchronize(5),
    lambda: torch.cuda.Stream(5),
    lambda: x.to("cuda:5"),
    lambda: torch.cuda.mem_get_info(5),
    lambda: torch.cuda.memory_stats(5),
    lambda: torch.cuda.reset_peak_memory_stats(5),
    lambda: torch.cuda.set_per_process_memory_fraction(0.5, 5),
]

for misuse in NO_DEVICE:
    try:
        print("no error", misuse())
    except Exception as error:
        print(type(error).__name__)
