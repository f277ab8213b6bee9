"""The entropies of a rank's answers are gathered as they are: as many as the answers have tokens, which differs."""

# /// catalogue
# title = "TRL: entropies are gathered in the sizes that each rank has"
# mechanism = """\
# With top_entropy_quantile below 1, get_high_entropy_mask gathers one entropy for each token of this rank's answers. \
# An all-gather takes the same size from each rank, and the answers are of different lengths."""
# threads = ["https://github.com/huggingface/trl/issues/3933", "https://github.com/huggingface/trl/pull/3964"]
# kind = "hang"
# known = "0.22.0; 0.21.0 has the same lines; 0.23.0 gathers the sizes and pads"
# ranks = 2
# [affected]
# packages = [
#   "trl==0.22.0", "transformers==4.56.2", "huggingface-hub==0.35.3", "tokenizers==0.22.1", "datasets==4.0.0",
# ]
# [fixed]
# packages = [
#   "trl==0.23.0", "transformers==4.56.2", "huggingface-hub==0.35.3", "tokenizers==0.22.1", "datasets==4.0.0",
# ]
# ///

from _tiny import trainer


def reward(completions, **rest):
    return [float(len(completion)) for completion in completions]


trainer(reward, top_entropy_quantile=0.5).train()
