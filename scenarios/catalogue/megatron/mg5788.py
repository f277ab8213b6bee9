"""Megatron-FSDP: free() of gathered parameters without record_stream. Not a race, as the all-gather's stream
waits."""

# /// catalogue
# title = "Megatron-FSDP: gathered storage resized to zero without record_stream"
# mechanism = """\
# StorageResizeBasedBucketAllocator.free gives the gathered storage back while compute may still read it, and nothing \
# calls record_stream. Memory of the all-gather's stream is used again on that stream alone, which waits for compute \
# before each all-gather."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/issues/5788"]
# kind = "not-shown"
# known = "as the thread says: 0.2.0 to 0.6.1"
# affected = { packages = ["megatron-fsdp==0.6.1"] }
# ranks = 2
# tried = """\
# ZeRO-3 of three units under 0.5.1 and 0.6.1, all-gathers and reductions overlapped: clean, no race of lifetime. The \
# author withdrew the report for this reason: all_gather_stream.wait_stream(current_stream) stands before each \
# allocation."""
# ///

from _units import train

train(units=3)
