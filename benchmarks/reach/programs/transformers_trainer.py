"""A model of transformers, made tiny by its configuration, under transformers' Trainer: ``MODEL``."""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import torch
import transformers
from shared import DEVICE, STEPS, tell
from transformers import AutoConfig, Trainer, TrainingArguments, set_seed

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
SMALL = {
    "albert": {"embedding_size": 16},
    "bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99},
    "bloom": {"n_layer": 2, "n_head": 4},
    "convnext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32},
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "falcon": {"num_kv_heads": 4},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "llama": {"num_key_value_heads": 2},
    "mamba": {"state_size": 4, "num_hidden_layers": 2},
    "mistral": {"num_key_value_heads": 2},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "modernbert": {"pad_token_id": 0},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "qwen3_moe": {"num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 16},
    "olmo2": {"num_key_value_heads": 2, "pad_token_id": 0},
    "starcoder2": {"num_key_value_heads": 2},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": 32},
    "t5": {"decoder_start_token_id": 0, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4},
    "vit": {"image_size": 32, "patch_size": 8},
    "wav2vec2": {"conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_conv_pos_embeddings": 16,
                 "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2, "vocab_size": 32,
                 "mask_time_prob": 0.0, "layerdrop": 0.0, "hidden_size": 32},
    "whisper": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99,
                "max_source_positions": 20, "max_target_positions": 16, "num_mel_bins": 8, "pad_token_id": 0,
                "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "begin_suppress_tokens": None},
}  # fmt: skip
CLASSES = {
    **dict.fromkeys(("albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta"),
                    "AutoModelForMaskedLM"),
    **dict.fromkeys(("bart", "t5"), "AutoModelForSeq2SeqLM"),
    **dict.fromkeys(("convnext", "swin", "vit"), "AutoModelForImageClassification"),
    "wav2vec2": "AutoModelForCTC",
    "whisper": "AutoModelForSpeechSeq2Seq",
}  # fmt: skip


class Data(torch.utils.data.Dataset):
    """Twelve random examples of what the model takes."""

    def __init__(self, kind: str) -> None:
        self.kind = CLASSES.get(kind, "AutoModelForCausalLM")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(number)
        tokens = torch.randint(3, 32, (16,), generator=draw)
        if self.kind.endswith("ImageClassification"):
            return {"pixel_values": torch.randn(3, 32, 32, generator=draw), "labels": torch.tensor(number % 2)}
        if self.kind.endswith("CTC"):
            return {"input_values": torch.randn(2000, generator=draw), "labels": tokens[:4]}
        if self.kind.endswith("SpeechSeq2Seq"):
            return {"input_features": torch.randn(8, 40, generator=draw), "labels": tokens[:8]}
        return {"input_ids": tokens, "labels": tokens}


kind = sys.argv[1]
set_seed(0)
given = SMALL.get(kind, {}) if kind in ("bart", "convnext", "swin", "t5", "whisper") else TEXT | SMALL.get(kind, {})
config = AutoConfig.for_model(kind, **given)
for name, value in config.to_dict().items():  # what is dropped on a GPU is not what is dropped on the CPU
    if "drop" in name and isinstance(value, float):
        setattr(config, name, 0.0)
model = getattr(transformers, CLASSES.get(kind, "AutoModelForCausalLM")).from_config(config)
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, report_to=[], save_strategy="no",
        use_cpu=DEVICE == "cpu", disable_tqdm=True, seed=0, data_seed=0, learning_rate=1e-3,
    )  # fmt: skip
    trainer = Trainer(model=model, args=settings, train_dataset=Data(kind))
    trainer.train()
    tell(*(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
    tell(float(np.mean([entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry])))
