"""Messages of an interleaved pipeline that are not batched. Not shown: no order of them waits in a circle."""

# /// catalogue
# title = "Megatron: an interleaved pipeline without batched messages hangs now and then"
# mechanism = """\
# As the thread says, a message outside of a batch makes a communicator of its two ranks when it is the first of them, \
# which waits for the other rank; with overlap_p2p_comm ranks may come to these waits in different order."""
# threads = ["https://github.com/NVIDIA/Megatron-LM/pull/5240"]
# kind = "not-shown"
# known = "as the thread says: pipelines of 4 with 2 virtual stages, on and off; 9 of 9 retries in one case"
# affected = { packages = ["megatron-core==0.16.1"] }
# ranks = 4
# tried = """\
# 0.16.1 with pipelines of 2 and 4, 1 and 2 virtual stages, batched messages and others: clean. The messages wait in \
# no circle, as _p2p_ops lets every second rank receive first. What the thread suspects is not simulated: here a \
# communicator is made at once, and no rank waits for it."""
# ///

from _pipeline import train

train(overlap_p2p_comm=True, batch_p2p_comm=False)
