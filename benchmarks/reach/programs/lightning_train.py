"""Lightning's own demonstrations on ranks: ``boring`` or ``transformer`` under ``ddp`` or ``fsdp``, or on one GPU."""

from __future__ import annotations

import sys
import tempfile

import lightning
import torch
from lightning.pytorch.demos import Transformer
from lightning.pytorch.demos.boring_classes import BoringModel
from shared import DEVICE, STEPS, tell

kind, strategy = sys.argv[1:3]
lightning.seed_everything(0)
losses: list[float] = []


class Language(lightning.LightningModule):
    """Lightning's example ``fabric/language_model``, without its data set."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(vocab_size=50, ninp=32, nhead=2, nhid=32, nlayers=2, dropout=0.0)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        output = self.model(batch[:, :-1], batch[:, 1:])
        return torch.nn.functional.nll_loss(output, batch[:, 1:].reshape(-1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(torch.randint(0, 50, (16, 9)), batch_size=2)


class Told(lightning.Callback):
    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: dict, *_: object
    ) -> None:
        losses.append(outputs["loss"].item())


with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu" if DEVICE == "cpu" else "gpu", devices=2 if strategy != "auto" else 1,
        strategy=strategy, logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[Told()],
        default_root_dir=folder, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(BoringModel() if kind == "boring" else Language())
if trainer.is_global_zero:
    tell(*losses)
