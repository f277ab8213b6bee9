"""A trainer of TRL with a tiny Llama and a tokenizer made on the spot: ``sft``, ``dpo``, ``reward`` or ``grpo``."""

from __future__ import annotations

import copy
import sys
import tempfile

import trl
from datasets import Dataset
from shared import DEVICE, STEPS, tell
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

WORDS = ("<pad>", "<s>", "</s>", "<unk>", "one", "two", "three", "four", "ten", "plus", "is")
tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokens, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
)
tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
kind = sys.argv[1]
config = LlamaConfig(
    vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_labels=1,
)  # fmt: skip
model = (LlamaForSequenceClassification if kind == "reward" else LlamaForCausalLM)(config)
pairs = [{"prompt": "one plus two is", "chosen": " three", "rejected": " ten"},
         {"prompt": "two plus two is", "chosen": " four", "rejected": " one"}] * 6  # fmt: skip
rows = {
    "sft": [{"text": pair["prompt"] + pair["chosen"]} for pair in pairs],
    "dpo": pairs,
    "reward": pairs,
    "grpo": [{"prompt": pair["prompt"]} for pair in pairs],
    "rloo": [{"prompt": pair["prompt"]} for pair in pairs],
}[kind]
name = {"sft": "SFT", "dpo": "DPO", "reward": "Reward", "grpo": "GRPO", "rloo": "RLOO"}[kind]
drawn = {"num_generations": 2, "max_completion_length": 4, "temperature": 1.0} if kind in ("grpo", "rloo") else {}
further = {"reward_funcs": lambda completions, **_: [float(len(text)) for text in completions]} if drawn else {}
if kind == "dpo":
    further["ref_model"] = copy.deepcopy(model)
elif kind == "rloo":
    drawn["beta"] = 0.0  # else it loads the reference by its name
with tempfile.TemporaryDirectory() as folder:
    settings = getattr(trl, f"{name}Config")(
        folder, max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, report_to=[], save_strategy="no",
        use_cpu=DEVICE == "cpu", bf16=False, disable_tqdm=True, seed=0, gradient_checkpointing=False,
        learning_rate=1e-3, **drawn,
    )  # fmt: skip
    trainer = getattr(trl, f"{name}Trainer")(
        model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **further
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("losses", losses)
    tell(*(() if drawn else losses))  # sampled completions differ
