"""A small training with another package: the name of the package is the argument."""

from __future__ import annotations

import sys
import tempfile

import torch
from shared import DEVICE, STEPS, tell, train

kind = sys.argv[1]
batch = torch.randn(8, 16).to(DEVICE)
labels = torch.tensor([0, 1, 2, 3] * 2).to(DEVICE)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).to(DEVICE)


def loss() -> torch.Tensor:
    return (model(batch) - batch).square().mean()


if kind.startswith("pytorch-optimizer."):
    import pytorch_optimizer

    train(model, loss, pytorch_optimizer.load_optimizer(kind.partition(".")[2])(model.parameters(), lr=1e-3))
elif kind == "pytorch-metric-learning":
    from pytorch_metric_learning.losses import TripletMarginLoss

    metric = TripletMarginLoss()
    train(model, lambda: metric(model(batch), labels))
elif kind == "torchao.adamw8bit":
    from torchao.optim import AdamW8bit

    train(model, loss, AdamW8bit(model.parameters(), lr=1e-3))
elif kind == "torchao.qat":
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.qat import QATConfig

    base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16))
    quantize_(model, QATConfig(base, step="prepare"))
    train(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))  # AdamW's last bits would change what is rounded
elif kind == "bitsandbytes":
    import bitsandbytes

    train(model, loss, bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-3))
elif kind == "kornia":
    import kornia

    images, kernel = torch.rand(2, 3, 16, 16).to(DEVICE), torch.nn.Parameter(torch.full((1, 3, 3), 0.1).to(DEVICE))
    train(model, lambda: kornia.filters.filter2d(images, kernel).square().mean(), parameters=[kernel])
elif kind == "monai":
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    net = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,)).to(DEVICE)
    volume, masks = torch.randn(1, 1, 16, 16, 16).to(DEVICE), torch.randint(0, 2, (1, 1, 16, 16, 16)).to(DEVICE)
    dice = DiceCELoss(to_onehot_y=True, softmax=True)
    train(net, lambda: dice(net(volume), masks))
elif kind == "denoising-diffusion":
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    diffusion = GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=10).to(
        DEVICE
    )
    images, steps, noise = (
        torch.rand(2, 3, 16, 16).to(DEVICE),
        torch.tensor([2, 7]).to(DEVICE),
        torch.randn(2, 3, 16, 16),
    )
    train(diffusion, lambda: diffusion.p_losses(images, steps, noise=noise.to(DEVICE)))
elif kind == "tensordict":
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule

    module = TensorDictModule(model, in_keys=["given"], out_keys=["made"])
    train(module, lambda: (module(TensorDict({"given": batch}, [8]))["made"] - batch).square().mean())
elif kind == "sentence-transformers":
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(["a", "b", "c", "d", "?"])}, unk_token="?"))
    sentences = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device=DEVICE)
    rows = Dataset.from_list([{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}] * 6)
    with tempfile.TemporaryDirectory() as folder:
        settings = SentenceTransformerTrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1, report_to=[], save_strategy="no",
            use_cpu=DEVICE == "cpu", disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model=sentences, args=settings, train_dataset=rows, loss=MultipleNegativesRankingLoss(sentences)
        )
        trainer.train()
        tell(*(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
else:
    raise SystemExit(f"there is no program for '{kind}'")
