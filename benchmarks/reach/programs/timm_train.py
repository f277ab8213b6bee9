"""A model of timm, trained on random images: ``MODEL [OPTION=VALUE]...``."""

from __future__ import annotations

import ast
import sys

import timm
import torch
from shared import DEVICE, train

options = {name: ast.literal_eval(value) for name, _, value in (word.partition("=") for word in sys.argv[2:])}
model = timm.create_model(sys.argv[1], num_classes=4, drop_rate=0.0, **options).to(DEVICE)
size = options.get("img_size", 128)
images, labels = torch.randn(4, 3, size, size).to(DEVICE), torch.tensor([0, 1, 2, 3]).to(DEVICE)
train(model, lambda: torch.nn.functional.cross_entropy(model(images), labels))
