"""Defines small programs of one rank, each with a race that real code has had, and the same without it.

They use ``torch.cuda``. No race manifests as recorded: on an idle device no kernel is late. Pass a program to
:func:`streamrace.replay.record.record`, and execute the recording under other timings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.cuda import Event, Stream, current_stream, stream

from streamrace.device.device import Device

_SIZE = 256


@dataclass(frozen=True)
class Textbook:
    """A pair of programs: ``program`` races, ``fixed`` does not. ``depth``: how many pairs have to be in order."""

    program: Callable[[Device], None]
    fixed: Callable[[Device], None]
    description: str
    depth: int


def missing_wait(device: Device, *, fixed: bool = False) -> None:
    """A bucket is reduced on one stream before the other has filled it: nothing makes the first wait.

    DeepSpeed issue 8061: with ``overlap_comm`` the reduction waits for the current stream only, while gradients are
    copied into the bucket on others; NaN from the first step on.
    """
    bucket, gradient = torch.zeros(_SIZE, device="cuda"), torch.full((_SIZE,), 3.0, device="cuda")
    reduction = _behind(device, "reduction")
    bucket.copy_(gradient)
    if fixed:
        reduction.wait_stream(current_stream())
    with stream(reduction):
        reduced = bucket / 2
    _look(device, reduction, "gradient", reduced)


def overwritten_buffer(device: Device, *, fixed: bool = False) -> None:
    """Two buffers take turns, and one is filled again although its reader may not be done with it.

    Megatron-LM pull request 5222: the gradients of a layer overwrote the buffer that the reduce-scatter of an earlier
    layer still read. Caffe pull request 2998: the same with prefetched batches.
    """
    buffers = [torch.zeros(_SIZE, device="cuda"), torch.zeros(_SIZE, device="cuda")]
    total = torch.zeros(_SIZE, device="cuda")
    reduction = _behind(device, "reduction")
    read = [Event(), Event()]
    for layer in range(4):
        slot = layer % 2
        if fixed:
            read[slot].wait()
        buffers[slot].fill_(layer + 1.0)
        reduction.wait_stream(current_stream())
        with stream(reduction):
            total.add_(buffers[slot])
            read[slot].record()
    _look(device, reduction, "gradient", total)


def freed_early(device: Device, *, fixed: bool = False) -> None:
    """Memory is dropped, and handed out again, while another stream reads it: no ``record_stream``.

    torchrec pull request 4231: a copy to the host on a side stream, whose source was released meanwhile, gave NaN.
    TensorRT-LLM pull request 15265: events ordered the work and not the allocator; illegal addresses. It is the next
    owner's first work that does the harm, and the allocator gives the block to whoever asks for so many bytes on the
    stream that had it.
    """
    activation = torch.full((_SIZE,), 5.0, device="cuda")
    offload = _behind(device, "offload")
    with stream(offload):
        stashed = activation.clone()
    if fixed:
        activation.record_stream(offload)
    del activation
    gradient = torch.zeros(_SIZE, device="cuda")
    _look(device, offload, "activation", stashed)
    device.probe("parameter", "gradient", gradient, _nothing)


def early_event(device: Device, *, fixed: bool = False) -> None:
    """An event is recorded before the work that it stands for, so waiting for it orders nothing.

    ROCm XLA pull request 964: the event of an input's readiness was one of the compute stream, and passed before
    the transfer had filled the buffer; results were zeros.
    """
    batch, weight = torch.zeros(_SIZE, device="cuda"), torch.full((_SIZE,), 2.0, device="cuda")
    forward = _behind(device, "forward")
    ready = Event()
    if not fixed:
        ready.record()
    batch.copy_(torch.arange(float(_SIZE), device="cuda"))
    if fixed:
        ready.record()
    forward.wait_event(ready)
    with stream(forward):
        loss = (batch * weight).sum()
    _look(device, forward, "", loss, kind="loss")


def swapped_weights(device: Device, *, fixed: bool = False) -> None:
    """Averaged weights are swapped in for an evaluation and out again; a snapshot may be taken in between.

    Before and after, the weights are the same, so it takes more than a slow stream: the swap back has to be late and
    the swap itself not. As in PyTorch issue 144657, an asynchronous save reads weights that change meanwhile.
    """
    weights, average = torch.full((_SIZE,), 2.0, device="cuda"), torch.full((_SIZE,), 7.0, device="cuda")
    kept = weights.clone()
    save = _behind(device, "save")
    weights.copy_(average)
    evaluation = weights.sum()
    weights.copy_(kept)
    if fixed:
        save.wait_stream(current_stream())
    with stream(save):
        snapshot = weights.clone()
    _look(device, save, "weights", snapshot)
    device.probe("loss", "", evaluation, _nothing)


def torn_snapshot(device: Device, *, fixed: bool = False) -> None:
    """A snapshot of weights and optimizer state is taken during an update: one of them is old and one new.

    Both old or both new is a good checkpoint, so one of the two updates has to come between the two copies. The hazard
    is that of asynchronous checkpoints (torchtitan issue 930: is the copy made before ``save`` returns?).
    """
    weights, state = torch.ones(_SIZE, device="cuda"), torch.ones(_SIZE, device="cuda")
    save = _behind(device, "save")
    weights.add_(1)
    state.add_(1)
    if fixed:
        save.wait_stream(current_stream())
    with stream(save):
        saved, saved_state = weights.clone(), state.clone()
        apart = (saved - saved_state).abs().sum()
    _look(device, save, "consistency", apart)


def _behind(device: Device, name: str) -> Stream:
    """Create a stream ordered after all work issued so far."""
    side = Stream()
    device.name_stream(side, name)
    side.wait_stream(current_stream())
    return side


def _look(device: Device, used: Stream, name: str, value: Tensor, *, kind: str = "parameter") -> None:
    """Probe the value that training uses in the end. The host waits for all streams, as to print a loss."""
    with stream(used):
        device.probe(kind, name, value, _nothing)
    torch.cuda.synchronize()


def _nothing(value: Tensor) -> None:
    pass


def _textbook(program: Callable[..., None], depth: int = 1) -> Textbook:
    description = (program.__doc__ or "").partition("\n")[0]
    return Textbook(program, partial(program, fixed=True), description, depth)


TEXTBOOK: dict[str, Textbook] = {
    "missing-wait": _textbook(missing_wait),
    "overwritten-buffer": _textbook(overwritten_buffer),
    "freed-early": _textbook(freed_early),
    "early-event": _textbook(early_event),
    "swapped-weights": _textbook(swapped_weights, depth=2),
    "torn-snapshot": _textbook(torn_snapshot, depth=2),
}
