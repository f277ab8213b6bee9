"""Megatron-FSDP: with double buffers, two neighbouring units get the same buffer of gradients."""

# /// catalogue
# title = "Megatron-FSDP: neighbouring units share one of two gradient buffers"
# mechanism = """\
# With two buffers the limit lets one unit of gradients be in flight only. It frees the neighbour's buffer after a \
# wait that the side stream makes, not compute, and backward writes the next gradient into it while it is reduced."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/pull/5222", "https://github.com/NVIDIA/Megatron-LM/pull/4054"]
# kind = "race"
# known = "0.5.0 and 0.5.1 (0.4.0 and 0.6.0 are clean with two units; with three see mg_double_buffer)"
# affected = { packages = ["megatron-fsdp==0.5.1"] }
# fixed = { packages = ["megatron-fsdp==0.6.1"] }
# ranks = 2
# places = ["param_and_grad_buffer.py:_bucket_group_gradient_reduce", "megatron_fsdp.py:_grad_acc"]
# harm = "harmful"
# ci = true
# ///

from _units import train

train(units=2, fsdp_double_buffer=True)
