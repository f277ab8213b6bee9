"""FSDP2: the buffer of gradients is used again while it is reduced."""

# /// catalogue
# title = "FSDP2: the buffer of gradients is used again while it is reduced"
# mechanism = """\
# The input of the reduce-scatter belongs to the compute stream. It is kept until that stream has waited for the \
# reduce-scatter (two lines: within backward, and at its end). Without them the next layer's gradients get the same \
# memory."""
# threads = [
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py#L657",
#   "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_state.py#L430",
# ]
# kind = "race"
# known = "no release: one wait of torch 2.13.0 is taken away"
# affected = { packages = [], arguments = ["--without"] }
# fixed = { packages = [] }
# ranks = 2
# places = ["_fsdp_collectives.py:DefaultReduceScatter.__call__", "_fsdp_collectives.py:chunk_cat"]
# harm = "harmful"
# ///

from _training import train

train(
    without=[
        ("post_backward", "wait_event(oldest.event)"),
        ("_root_post_backward_final_callback", "wait_event(rs_state.event)"),
    ]
)
