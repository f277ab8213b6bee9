"""FSDP2: copy-out without its wait for the all-gather."""

# /// catalogue
# title = "FSDP2: copy-out without its wait for the all-gather"
# mechanism = """\
# The compute stream copies the parameters out of the gathered buffer. Without the wait for the all-gather's event it \
# copies what lay there before: here NaN at once."""
# threads = [
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py#L447",
# ]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_fsdp_collectives.py:DefaultAllGather.__call__", "_fsdp_collectives.py:split_with_sizes_copy"]
# harm = "harmful"
# ///

from _training import train

train(without=[("foreach_all_gather_copy_out", "wait_event(all_gather_event)")])
