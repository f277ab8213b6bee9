"""Megatron-FSDP: with double buffers and three units, the wait before a buffer is used again is made by the wrong
stream."""

# /// catalogue
# title = "Megatron-FSDP: a gradient buffer is used again after a wait on the wrong stream"
# mechanism = """\
# _enforce_double_buffer_limit waits for the oldest reduction under torch.cuda.stream(self.rs_stream), the stream of \
# the reductions themselves, and frees its buffer. Compute, which writes the third unit's gradients into it, waits \
# for nothing."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/pull/5222"]
# kind = "open"
# known = "0.5.0 to 0.6.1: the newest release, after the fix of mg5222"
# affected = { packages = ["megatron-fsdp==0.6.1"] }
# fixed = { packages = ["megatron-fsdp==0.6.1"], arguments = ["--cured"] }
# ranks = 2
# places = ["param_and_grad_buffer.py:4121", "megatron_fsdp.py:_grad_acc"]
# harm = "harmful"
# ///

import sys

from _units import train
from megatron_fsdp.param_and_grad_buffer import GradReducePipeline


def ordered(pipeline, buckets, enforce=GradReducePipeline._enforce_double_buffer_limit):
    before = [*pipeline.grad_reduce_queue]
    enforce(pipeline, buckets)
    for event, *_ in before[: len(before) - len(pipeline.grad_reduce_queue)]:
        event.wait()  # on the stream that will write into the buffer that was freed


if "--cured" in sys.argv:
    GradReducePipeline._enforce_double_buffer_limit = ordered


train(units=3, fsdp_double_buffer=True)
