"""Features that were prepared for a batch are freed while forward and backward still read them on another stream."""

# /// catalogue
# title = "torchrec: prepared features are used again while backward reads them"
# mechanism = """\
# TrainPipelineSparseDist runs a module without weights ahead, on the distribution stream, and forward takes the \
# result from a cache without record_stream. It is freed with its batch, and the next batch's result is written over \
# it while compute still reads it."""
# threads = ["https://github.com/meta-pytorch/torchrec/pull/2598"]
# kind = "race"
# known = "as the thread says: up to 1.0.0; 1.1.0 is clean"
# affected = { packages = ["torchrec==1.0.0", "fbgemm-gpu-cpu==1.8.0"] }
# fixed = { packages = ["torchrec==1.1.0", "fbgemm-gpu-cpu==1.8.0"] }
# ranks = 1
# places = ["tr2598.py:forward", "utils.py:_start_data_dist"]
# harm = "harmful"
# ///

import torch
from _sharded import Rows, run
from torch import nn
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineContext, TrainPipelineSparseDist


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.prepare, self.rows, self.dense = nn.Tanh(), Rows(trained=True), nn.Linear(32, 32)

    def forward(self, batch):
        features = self.prepare(batch.x)
        out = self.rows(features).wait().relu() * self.dense(features)
        return out.square().mean(), out


torch.manual_seed(7)
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
where = torch.device("cuda", 0)
run(model, TrainPipelineSparseDist(model, optimizer, where, True, False, TrainPipelineContext, True))  # prepares ahead
