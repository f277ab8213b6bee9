"""The lookup of the next batch's embeddings runs on a stream that does not wait for its input."""

# /// catalogue
# title = "torchrec: embeddings are looked up before the indices have arrived"
# mechanism = """\
# With emb_lookup_stream='new' the input arrives on the distribution stream and is looked up on a stream of its own. \
# Nothing makes the second wait for the first."""
# threads = ["https://github.com/meta-pytorch/torchrec/pull/4497"]
# kind = "race"
# known = "1.8.0, earlier ones not tried; 1.9.0 is clean"
# affected = { packages = ["torchrec==1.8.0", "fbgemm-gpu-cpu==1.8.0"] }
# fixed = { packages = ["torchrec==1.9.0", "fbgemm-gpu-cpu==1.8.0"] }
# ranks = 1
# places = ["_sharded.py:input_dist", "_sharded.py:compute"]
# harm = "harmful"
# ///

import torch
from _sharded import Rows, run
from torch import nn
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineFusedSparseDist


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.dense = Rows(trained=False), nn.Linear(32, 32)  # a table would be updated within backward

    def forward(self, batch):
        out = self.dense(self.rows(batch.x))
        return out.square().mean(), out


torch.manual_seed(7)
model = Model().cuda()
optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.01)
run(model, TrainPipelineFusedSparseDist(model, optimizer, torch.device("cuda", 0), emb_lookup_stream="new"))
