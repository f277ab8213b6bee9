"""FSDP2: all-gather without its wait for the copy-in."""

# /// catalogue
# title = "FSDP2: all-gather without its wait for the copy-in"
# mechanism = """\
# The copy-in stream copies the shards into the buffer of the all-gather, which runs on a stream of its own. Without \
# the wait it sends what lay there before."""
# threads = [
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py#L362",
# ]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_fsdp_collectives.py:all_gather_copy_in_cuda", "_fsdp_collectives.py:DefaultAllGather.__call__"]
# harm = "harmful"
# ci = true
# ///

from _training import train

train(without=[("foreach_all_gather", "wait_stream(all_gather_copy_in_stream)")])
