"""Asynchronous checkpoints: DefaultStager copies parameters to the host before the optimizer has written them.

The stager's thread issues its copies on a stream of its own, made once, and waits for them there. Nothing makes that
stream wait for the one that trains, and torch.distributed.checkpoint.async_save does not either.
"""
# /// catalogue
# title = "DefaultStager: parameters are staged before the optimizer's step is done"
# mechanism = "DefaultStager._stage copies on the staging stream, which is never ordered after the stream that was current when stage() was called; the synchronisation behind the copies waits for that stream alone."
# threads = []
# kind = "open"
# known = "2.13.0; earlier ones not tried"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--cured"] }
# ranks = 1
# places = ["pt_default_stager.py:<module>", "_state_dict_stager.py:_stage_untyped_storage"]
# harm = "harmful"
# ///

import sys

import torch
from torch.distributed.checkpoint.staging import DefaultStager

stage = DefaultStager.stage


def cured(self, state):
    self._staging_stream.wait_stream(torch.cuda.current_stream())
    return stage(self, state)


if "--cured" in sys.argv:
    DefaultStager.stage = cured
torch.manual_seed(0)
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
batch = torch.randn(8, 64).cuda()
stager = DefaultStager()
for _ in range(3):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    staged = stager.stage(model.state_dict()).result()
    torch.cuda.synchronize()
    same = all(torch.equal(staged[name], one.cpu()) for name, one in model.state_dict().items())
    print("staged what was trained:", same)
stager.close()
