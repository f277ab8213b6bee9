"""FSDP2: reduce-scatter without its wait for the gradients."""

# /// catalogue
# title = "FSDP2: reduce-scatter without its wait for the gradients"
# mechanism = """\
# Backward copies the gradients into one buffer on the compute stream, and the reduce-scatter runs on a stream of its \
# own. Without the wait it sums what lay there before."""
# threads = [
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py#L607",
# ]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_fsdp_collectives.py:chunk_cat", "_fsdp_collectives.py:DefaultReduceScatter.__call__"]
# harm = "harmful"
# ci = true
# ///

from _training import train

train(without=[("foreach_reduce", "wait_stream(current_stream)")])
