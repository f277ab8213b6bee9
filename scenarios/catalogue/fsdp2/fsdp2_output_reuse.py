"""FSDP2: the gathered buffer is used again while it is copied out."""

# /// catalogue
# title = "FSDP2: the gathered buffer is used again while it is copied out"
# mechanism = """\
# The buffer belongs to the all-gather's streams and is freed after the copy-out on the compute stream. These streams \
# must wait for it before the next all-gather gets the same memory, as nothing calls record_stream."""
# threads = [
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py#L494",
# ]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_fsdp_collectives.py:split_with_sizes_copy", "_fsdp_collectives.py:all_gather_copy_in_cuda"]
# harm = "harmful"
# ///

from _training import train

train(without=[("_wait_all_gather_streams_on_event", "wait_event(event)")])
