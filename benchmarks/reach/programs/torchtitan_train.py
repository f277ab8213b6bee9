"""torchtitan's trainer with a small model: ``MODEL FLAVOR [OPTION]...``, options as its own command takes them."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from shared import STEPS, tell
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torchtitan.config import ConfigManager
from torchtitan.train import Trainer

WORDS = ("stream", "event", "wait", "rank", "gather", "shard", "step", "loss")


class Told(Trainer):
    """The trainer, which keeps its losses."""

    def forward_backward_step(self, *arguments: object, **options: object) -> torch.Tensor:
        loss: torch.Tensor = super().forward_backward_step(*arguments, **options)
        losses.append(loss.detach())
        return loss


model, flavor, *options = sys.argv[1:]
losses: list[torch.Tensor] = []
with tempfile.TemporaryDirectory() as folder:
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(["<s>", "</s>", *WORDS])}, unk_token="<s>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(f"{folder}/tokenizer.json")
    data = Path(folder, "data")
    data.mkdir()
    lines = [json.dumps({"text": " ".join(WORDS[(at * turn) % 8] for turn in range(40))}) for at in range(1, 64)]
    (data / "data.json").write_text("\n".join(lines))
    smaller = ["--training.steps", str(STEPS), "--training.local_batch_size", "2", "--training.seq_len", "32"]
    paths = ["--model.hf_assets_path", folder, "--training.dataset_path", str(data), "--job.dump_folder", folder]
    named = ["--model.name", model, "--model.flavor", flavor, "--training.dataset", "c4_test", "--debug.seed", "0"]
    trainer = Told(ConfigManager().parse_args([*named, *smaller, *paths, *options]))
    trainer.train()
    trainer.close()
if losses[0] >= 0:  # else a stage that has none
    tell(*losses)
torch.distributed.destroy_process_group()
