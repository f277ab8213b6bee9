"""triton.testing.do_bench_cudagraph: the function runs on a new stream before its inputs have been written.

The benchmark makes a stream and calls the function there at once, for a warm-up. Nothing makes this stream wait for the
one on which the caller has issued what the function reads, so the warm-up may read memory that is not yet written.
"""
# /// catalogue
# title = "do_bench_cudagraph: the benchmark's stream waits for nothing"
# mechanism = "do_bench_cudagraph enters torch.cuda.stream(torch.cuda.Stream()) and calls the function there, before any wait or synchronisation; what the caller issued on its own stream may still be pending."
# threads = ["https://github.com/triton-lang/triton/pull/10312"]
# kind = "open"
# known = "to 3.9.0 (3.9.0 was tried)"
# affected = { packages = ["triton==3.9.0"] }
# fixed = { packages = ["triton==3.9.0"], arguments = ["--cured"] }
# ranks = 1
# places = ["tt10312.py:<module>", "tt10312.py:launch"]
# harm = "harmful"
# ///

import sys

import torch
import triton
import triton.language as tl
import triton.testing


@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 2)


def launch():
    double[(1,)](x, out, BLOCK=64)
    totals.append(out.sum()) if not totals else None


totals = []
x, out = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
torch.cuda.synchronize()
x += 1  # what the function reads
if "--cured" in sys.argv:
    torch.cuda.synchronize()
triton.testing.do_bench_cudagraph(launch, rep=1)
print("warm-up:", totals[0].item())
