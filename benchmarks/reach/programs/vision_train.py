"""A model of a package for vision, trained on random images: ``vit-pytorch``, ``open-clip``, ``unet`` or ``simclr``."""

from __future__ import annotations

import sys

import torch
from shared import DEVICE, train

kind = sys.argv[1]
images = torch.randn(4, 3, 32, 32).to(DEVICE)
labels = torch.tensor([0, 1, 2, 3]).to(DEVICE)
if kind == "vit-pytorch":
    from vit_pytorch import ViT

    model = ViT(image_size=32, patch_size=8, num_classes=4, dim=32, depth=2, heads=2, mlp_dim=64).to(DEVICE)
    train(model, lambda: torch.nn.functional.cross_entropy(model(images), labels))
elif kind == "open-clip":
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP

    model = CLIP(
        16, {"layers": 2, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32},
        {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2},
    ).to(DEVICE)  # fmt: skip
    texts = torch.randint(1, 50, (4, 8)).to(DEVICE)
    train(model, lambda: ClipLoss()(*model(images, texts)))
elif kind == "unet":
    import segmentation_models_pytorch as segmentation

    model = segmentation.Unet("resnet18", encoder_weights=None, classes=2).to(DEVICE)
    masks = torch.randint(0, 2, (4, 32, 32)).to(DEVICE)
    loss = segmentation.losses.DiceLoss("multiclass")
    train(model, lambda: loss(model(images), masks))
else:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        SimCLRProjectionHead(16, 16, 8),
    ).to(DEVICE)  # fmt: skip
    loss = NTXentLoss()
    train(model, lambda: loss(model(images), model(images.flip(3))))
