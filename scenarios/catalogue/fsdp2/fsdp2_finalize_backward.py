"""FSDP2: optimizer without its wait for the gradients."""

# /// catalogue
# title = "FSDP2: optimizer without its wait for the gradients"
# mechanism = """\
# What follows the reduce-scatter on its stream, here the cast to fp32, is waited for in finalize_backward alone. \
# Without a cast or division the wait is covered by the one of _fsdp_state.py:430, and its loss is not seen: \
# reduce_dtype=torch.float32 is clean."""
# threads = [
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py#L765",
# ]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_fsdp_common.py:_to_dtype_if_needed", "_training.py:train"]
# harm = "harmful"
# ///

from _training import train

train(without=[("finalize_backward", "wait_event(event)")])
