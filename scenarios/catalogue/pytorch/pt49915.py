"""A tensor is copied to another GPU on a stream of its own, and freed before the copy has read it.

The copy waits for both GPUs' current streams, but the allocator knows only the stream on which the tensor was made: it
gives the memory to the next tensor of that stream, whose numbers arrive on the other GPU.
"""
# /// catalogue
# title = "A copy between two GPUs on a side stream reads memory that the allocator has given away"
# mechanism = "Without record_stream, memory that is freed goes back to the stream that allocated it, and nothing makes this stream's next kernel wait for the copy stream."
# threads = ["https://github.com/pytorch/pytorch/issues/49915", "https://github.com/pytorch/pytorch/issues/23729"]
# kind = "open"
# known = "1.7.0 to 2.13.0: documented since 1.9 (Tensor.record_stream)"
# affected = {}
# fixed = { arguments = ["--cured"] }
# ranks = 1
# gpus = 2
# places = ["pt49915.py:send", "pt49915.py:<module>"]
# harm = "harmful"
# ///

import sys

import torch

side = torch.cuda.Stream(0)


def send():
    given = torch.ones(100, device="cuda:0")
    side.wait_stream(torch.cuda.default_stream(0))
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000)
        sent = given.to("cuda:1")
    if "--cured" in sys.argv:
        given.record_stream(side)
    return sent


sent = send()
other = torch.full((100,), 7.0, device="cuda:0")
print("sum:", sent.sum().item())
