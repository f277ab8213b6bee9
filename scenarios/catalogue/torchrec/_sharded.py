"""What the programs beside this one share: a batch, and the smallest sharded module, whose input goes on as it is."""

import dataclasses

import torch
from torch import nn
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.types import Awaitable, NoWait, ShardedModule
from torchrec.streamable import Pipelineable


@dataclasses.dataclass
class Batch(Pipelineable):
    """What moves through a pipeline: a batch, or the context of a module."""

    x: torch.Tensor

    def to(self, device, non_blocking=False):
        return Batch(self.x.to(device, non_blocking=non_blocking))

    def record_stream(self, stream):
        self.x.record_stream(stream)


class Arriving(Awaitable):
    """What comes out of a module: who waits for it may use it, as with a collective's work."""

    def __init__(self, output):
        super().__init__()
        self.output, self.event = output, torch.cuda.current_stream().record_event()

    def _wait_impl(self):
        torch.cuda.current_stream().wait_event(self.event)
        self.output.record_stream(torch.cuda.current_stream())
        return self.output


class Rows(ShardedModule):
    """A product with a matrix in the place of an embedding's lookup."""

    def __init__(self, trained):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32), requires_grad=trained)

    @property
    def unsharded_module_type(self):
        return nn.Module

    def create_context(self):
        return Batch(torch.empty(1, device="cuda"))

    def input_dist(self, ctx, x):
        return KJTListSplitsAwaitable([NoWait(NoWait(x.clone()))], ctx)  # as an all-to-all: memory of its own

    def compute(self, ctx, arrived):
        return arrived[0] @ self.weight

    def output_dist(self, ctx, output):
        return Arriving(output)


def run(model, pipeline):
    """Prints what each batch gave, and what was learned. All is read when it is over: a read would order the steps."""
    batches = iter([Batch(torch.randn(16, 32).pin_memory()) for _ in range(4)])
    outputs = [pipeline.progress(batches).detach() for _ in range(4)]
    learned = [parameter.detach().double().sum() for parameter in model.parameters()]
    print([out.double().sum().item() for out in outputs], [value.item() for value in learned])
