"""A metric that only some ranks log is summed by them alone, and their next collective meets another one."""

# /// catalogue
# title = "Lightning: log_dict sums a metric that one rank alone has logged"
# mechanism = """\
# With sync_dist log_dict sums each metric over the ranks as it is logged: a barrier and an all-reduce for each name. \
# Where a rank has a name that another one lacks, its barrier meets the other's gradients."""
# threads = ["https://github.com/Lightning-AI/pytorch-lightning/issues/19106"]
# kind = "hang"
# known = "2.6.6, the newest tried; the docs ask for the same keys on all ranks, as the cure here has them"
# affected = { packages = ["lightning==2.6.6"] }
# fixed = { packages = ["lightning==2.6.6"], arguments = ["--cured"] }
# ranks = 2
# ///

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def on_train_start(self):
        torch.cuda.synchronize()  # DDP was built on another stream, for which nothing waits

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        metrics = {"loss": loss.detach()}
        if self.global_rank == 0 or "--cured" in sys.argv:  # as where this rank's batch has an outlier
            metrics["outlier"] = batch[0].abs().max()
        self.log_dict(metrics, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(7)
batches = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=2)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="gpu", devices=2, strategy="ddp", max_steps=2, **quiet)
trainer.fit(Regression(), batches)
