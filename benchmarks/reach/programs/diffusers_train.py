"""A denoising model of diffusers on random images: ``unet``, ``conditional``, ``dit`` or ``vae``."""

from __future__ import annotations

import sys

import diffusers
import torch
from shared import DEVICE, train

kind = sys.argv[1]
images = torch.randn(2, 3, 16, 16).to(DEVICE)
noise, steps = torch.randn(2, 3, 16, 16).to(DEVICE), torch.tensor([3, 500]).to(DEVICE)
noisy = diffusers.DDPMScheduler().add_noise(images, noise, steps)
small = {"sample_size": 16, "in_channels": 3, "out_channels": 3, "block_out_channels": (16, 32), "norm_num_groups": 8}
if kind == "unet":
    model = diffusers.UNet2DModel(
        layers_per_block=1, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8, **small,
    )  # fmt: skip
    predicted = lambda: model(noisy, steps).sample  # noqa: E731
elif kind == "conditional":
    model = diffusers.UNet2DConditionModel(
        layers_per_block=1, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), cross_attention_dim=16,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=4, **small,
    )  # fmt: skip
    words = torch.randn(2, 5, 16).to(DEVICE)
    predicted = lambda: model(noisy, steps, encoder_hidden_states=words).sample  # noqa: E731
elif kind == "dit":
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=3, num_layers=2, sample_size=16, patch_size=4,
        num_embeds_ada_norm=10,
    )  # fmt: skip
    classes = torch.tensor([1, 2]).to(DEVICE)
    predicted = lambda: model(noisy, timestep=steps, class_labels=classes).sample  # noqa: E731
else:
    model = diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4,
    )  # fmt: skip
    predicted = lambda: model(images).sample  # noqa: E731
model.to(DEVICE).eval()  # without its random drop of classes
train(model, lambda: torch.nn.functional.mse_loss(predicted(), noise))
