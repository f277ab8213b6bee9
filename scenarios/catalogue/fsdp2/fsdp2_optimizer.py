"""FSDP2: next step's all-gather without its wait for the optimizer."""

# /// catalogue
# title = "FSDP2: next step's all-gather without its wait for the optimizer"
# mechanism = """\
# The optimizer writes the shards on the compute stream; the next forward copies them into the all-gather's buffer on \
# the copy-in stream. Without the wait of the root's pre-forward it gathers the step before."""
# threads = ["https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_state.py#L153"]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_training.py:train", "_fsdp_collectives.py:_get_param_all_gather_inputs"]
# harm = "harmful"
# ///

from _training import train

train(without=[("_root_pre_forward", "wait_stream(current_stream)")])
