"""What the programs beside this one share: a model of one layer, its tokenizer, and two prompts for GRPO."""

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

WORDS = {word: number for number, word in enumerate(["<pad>", "<end>", *"abcdefgh"])}


def trainer(reward, **how):
    """Return a trainer for one step of two answers on each rank. ``how``: further settings of GRPOConfig."""
    words = Tokenizer(WordLevel(WORDS, unk_token="<pad>"))
    words.pre_tokenizer = Whitespace()
    names = {"pad_token": "<pad>", "eos_token": "<end>", "model_input_names": ["input_ids", "attention_mask"]}
    words = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **sizes, **special)).double()  # no Triton for it
    step = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 8}
    nothing = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "bf16": False}
    config = GRPOConfig(output_dir="unused", **step, **nothing, gradient_checkpointing=False, **how)
    data = Dataset.from_dict({"prompt": ["a b c", "d e f"]})
    return GRPOTrainer(model, reward, config, data, processing_class=words)
