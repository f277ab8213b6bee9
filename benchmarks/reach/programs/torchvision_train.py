"""A model of torchvision, trained on random images: ``MODEL``, of classification, segmentation or detection."""

from __future__ import annotations

import sys

import torch
import torchvision
from shared import DEVICE, train

name = sys.argv[1]
options = {"weights": None, "weights_backbone": None} if name.endswith(("rcnn", "fpn", "large")) else {"weights": None}
model = torchvision.models.get_model(name, num_classes=4, **options).to(DEVICE)
for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
if "rcnn" in name:
    images = [torch.rand(3, 64, 64).to(DEVICE) for _ in range(2)]
    boxes = torch.tensor([[4.0, 4.0, 40.0, 40.0]]).to(DEVICE)
    targets = [{"boxes": boxes, "labels": torch.tensor([1]).to(DEVICE)} for _ in images]
    model.transform.min_size, model.transform.max_size = (64,), 64
    train(model, lambda: sum(model(images, targets).values()))
else:
    batch = torch.randn(2, 3, 64, 64).to(DEVICE)
    segmented = name.startswith(("lraspp", "deeplab", "fcn"))
    labels = torch.randint(0, 4, (2, 64, 64) if segmented else (2,)).to(DEVICE)
    train(model, lambda: torch.nn.functional.cross_entropy(model(batch)["out"] if segmented else model(batch), labels))
