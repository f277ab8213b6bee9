"""A graph network of PyTorch Geometric on a random graph: ``CONV``, the name of its layer."""

from __future__ import annotations

import sys

import torch
import torch_geometric.nn as graphs
from shared import DEVICE, train

layer = getattr(graphs, sys.argv[1])
edges = torch.randint(0, 20, (2, 60)).to(DEVICE)
features, labels = torch.randn(20, 8).to(DEVICE), torch.randint(0, 3, (20,)).to(DEVICE)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layer(8, 16), layer(16, 3)

    def forward(self) -> torch.Tensor:
        return self.second(self.first(features, edges).relu(), edges)


model = Network().to(DEVICE)
train(model, lambda: torch.nn.functional.cross_entropy(model(), labels))
