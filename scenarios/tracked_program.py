"""Runs a plain training step whose peak memory both torch's own tracker and the simulated GPU report.

:mod:`streamrace.studies.trackers` runs it twice, with the same words: on a dry simulated GPU, which writes a trace, and
under ``FakeTensorMode``, where ``torch.distributed._tools`` counts the storages::

    streamrace device --dry --trace FILE -m streamrace.scenarios.tracked_program CASE
    streamrace device -m streamrace.scenarios.tracked_program --tracked CASE

The latter with ``--dry --gpus N`` for FSDP2 on N ranks.

``CASE``: a :class:`TrackedCase` as JSON. It prints one line: the bytes at the peak, by tracked kind, as JSON. With
``--tracked`` it runs under ``streamrace device`` too, whose ``torch.cuda`` makes torch choose the same work; fake
tensors take none of its memory.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

SAID = "PEAK "
"""Prefix of that line."""


@dataclass(frozen=True)
class TrackedCase:
    """A training step. ``model``: as in :func:`streamrace.scenarios.full_size.subject`; ``layers``: replaces its own.

    ``precision``: of parameters, gradients and moments (``bf16``, ``fp32``). ``attention``: ``eager`` or ``sdpa``.
    ``micro_batch``: sequences of ``sequence`` tokens. ``steps``: two, as Adam's moments exist from the end of the first
    on. ``ranks``: one GPU, or rank 0 of so many under FSDP2, a unit for each layer (of a model like Llama).
    """

    model: str
    precision: str
    attention: str
    checkpointing: bool
    layers: int | None = None
    micro_batch: int = 2
    sequence: int = 128
    steps: int = 2
    ranks: int = 1


def train(case: TrackedCase, track: Any = None) -> Any:
    """Build the model on the GPU and train it; read nothing.

    ``track``: creates a tracker from model, optimizer and batch, which is returned.
    """
    import torch
    from torch.distributed.fsdp import fully_shard
    from transformers.models import llama

    from streamrace.scenarios.full_size import loss_of, subject

    if case.attention == "sdpa":
        # The kernel handles causality itself. transformers first checks whether the mask is all ones, and a fake tensor
        # cannot tell: the model would get the mask, and another kernel with it.
        vars(llama.modeling_llama)["create_causal_mask"] = lambda *_, **__: None
    torch.set_default_dtype({"bf16": torch.bfloat16, "fp32": torch.float32}[case.precision])
    subjected = subject(case.model, attention=case.attention, layers=case.layers)
    with torch.device("meta"):  # initialisation is no part of a step
        model: Any = subjected.make().train()
    if case.ranks > 1:
        torch.distributed.init_process_group("nccl")
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        model.to_empty(device="cuda")
    else:
        _materialise(model)
    with torch.device("cuda"):
        batch = subjected.batch(case.micro_batch, case.sequence)
    if case.checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    # torch's own choice on a GPU; for a fake tensor it would go through the parameters one by one.
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    tracker: Any = track(model, optimizer, batch) if track else nullcontext()
    with tracker:
        for _ in range(case.steps):
            if track:
                tracker.reset_mod_stats()  # takes one step for the whole run
            loss_of(model(**batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return tracker


def _materialise(model: Any) -> None:
    """Allocate on the GPU. Not ``model.to_empty()``, which swaps a fake tensor's parts while others refer to them."""
    import torch

    on_gpu: dict[Any, Any] = {}  # a shared one once
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in on_gpu:
                on_gpu[parameter] = torch.nn.Parameter(torch.empty_like(parameter, device="cuda"))
            module.register_parameter(name, on_gpu[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty_like(buffer, device="cuda"))


def tracked(case: TrackedCase) -> dict[str, int]:
    """Return the bytes on the GPU at the peak by torch's tracker: by its kinds, and ``Total``."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    def plain(model: Any, optimizer: Any, batch: Any) -> Any:
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *batch.values())
        return tracker

    def sharded(model: Any, optimizer: Any, batch: Any) -> Any:
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs(tuple(batch.values()))
        return tracker

    # FSDP2's tracker follows the dry run's own tensors, which hold nothing either.
    with FakeTensorMode() if case.ranks == 1 else nullcontext():
        tracker = train(case, plain if case.ranks == 1 else sharded)
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]
    return {str(getattr(kind, "value", kind)): nbytes for kind, nbytes in snapshot.items()}


def counted(case: TrackedCase) -> dict[str, int]:
    """Return the bytes at the peak by the GPU's own allocator: ``Total`` alone."""
    import torch

    train(case)
    return {"Total": torch.cuda.max_memory_allocated()}


def main(words: list[str]) -> None:
    """Run the command line."""
    case = TrackedCase(**json.loads(words[-1]))
    print(f"\n{SAID}{json.dumps(tracked(case) if words[0] == '--tracked' else counted(case))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
