"""A plain training step, whose peak memory torch's own tracker and the simulated GPU both tell.

:mod:`studies.trackers` runs it twice, with the same words: on a dry simulated GPU, which writes a trace, and
under ``FakeTensorMode``, where ``torch.distributed._tools`` counts the storages::

    python -m simgpu --dry --trace FILE -m scenarios.tracked_program CASE
    python -m simgpu -m scenarios.tracked_program --tracked CASE

``CASE``: a :class:`TrackedCase` as JSON. It prints one line: the bytes at the peak, and tracked of what, as JSON.
Tracked, too, it is run by ``python -m simgpu``, whose ``torch.cuda`` makes torch choose the same work; fake tensors
take none of its memory.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

SAID = "PEAK "
"""What that line begins with."""


@dataclass(frozen=True)
class TrackedCase:
    """``model``: as :func:`scenarios.full_size.subject` takes it. ``layers``: instead of its own number.

    ``precision``: of parameters, gradients and moments
    (``bf16``, ``fp32``). ``attention``: ``eager`` or ``sdpa``. ``micro_batch``: sequences of ``sequence`` tokens.
    ``steps``: two, as Adam's moments are there from the end of the first on.
    """

    model: str
    precision: str
    attention: str
    checkpointing: bool
    layers: int | None = None
    micro_batch: int = 2
    sequence: int = 128
    steps: int = 2


def train(case: TrackedCase, tracker: Any = None) -> None:
    """The program: builds the model on the GPU, trains it, and reads nothing. ``tracker``: what counts, if anything."""
    import torch
    from transformers.modeling_utils import PreTrainedModel
    from transformers.models.llama import modeling_llama

    from scenarios.full_size import loss_of, subject

    if case.attention == "sdpa":
        # The kernel knows what is causal. transformers asks first whether the mask is all ones, and a fake tensor
        # cannot say: it would get the mask, and another kernel with it.
        modeling_llama.create_causal_mask = lambda *_, **__: None
    torch.set_default_dtype({"bf16": torch.bfloat16, "fp32": torch.float32}[case.precision])
    subjected = subject(case.model, attention=case.attention, layers=case.layers)
    with torch.device("meta"):  # how it is initialised is no part of a step
        model = subjected.make().train()
    # Not model.to_empty(), which swaps a fake tensor's parts while the tracker holds on to them.
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, torch.nn.Parameter(torch.empty_like(parameter, device="cuda")))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty_like(buffer, device="cuda"))
    with torch.device("cuda"):
        batch = subjected.batch(case.micro_batch, case.sequence)
    if case.checkpointing:
        assert isinstance(model, PreTrainedModel)
        model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    # As torch chooses by itself on a GPU; for a fake tensor it would go through the parameters one by one.
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for _ in range(case.steps):
        if tracker is not None:
            tracker.reset_mod_stats()  # it takes one step for all there is
        loss_of(model(**batch)).backward()
        optimizer.step()
        optimizer.zero_grad()


def tracked(case: TrackedCase) -> dict[str, int]:
    """Bytes on the GPU at the peak as ``MemTracker`` has them: by its kinds, and ``Total``."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(), MemTracker() as tracker:
        train(case, tracker)
    found = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]
    return {str(getattr(kind, "value", kind)): nbytes for kind, nbytes in found.items()}


def counted(case: TrackedCase) -> dict[str, int]:
    """The same as the GPU's own allocator has it: ``Total`` alone."""
    import torch

    train(case)
    return {"Total": torch.cuda.max_memory_allocated()}


def main(words: list[str]) -> None:
    """The command line."""
    case = TrackedCase(**json.loads(words[-1]))
    print(f"\n{SAID}{json.dumps(tracked(case) if words[0] == '--tracked' else counted(case))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
