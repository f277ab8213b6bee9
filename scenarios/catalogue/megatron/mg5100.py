"""An interleaved pipeline sends shapes before tensors, and stages that are a message apart wait for each other."""

# /// catalogue
# title = "Megatron: an interleaved pipeline that also sends shapes waits in a circle"
# mechanism = """\
# With variable_seq_lengths each exchange is two batches: shapes, then tensors. A stage sends the shape of its first \
# gradient in the batch that takes the shape of an activation. The stage before it waits until its activation is \
# taken, which is in the second batch, and takes the shape of the gradient afterwards."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/issues/5100", "https://github.com/NVIDIA/Megatron-LM/pull/5271"]
# kind = "hang"
# known = "core 0.16.1, the newest for Python 3.11; the cure is overlap_p2p_comm, which does not wait for each message"
# affected = { packages = ["megatron-core==0.16.1"] }
# fixed = { packages = ["megatron-core==0.16.1"], arguments = ["--cured"] }
# ranks = 4
# ///

import sys

from _pipeline import train

cured = "--cured" in sys.argv
train(overlap_p2p_comm=cured, batch_p2p_comm=not cured, variable_seq_lengths=True)
