"""A mixture of experts, a convolutional network and Megatron-LM's GPT: what they compute, without a read of a value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralForCausalLM

from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.families import BALANCED, CHOSEN, TextAsPicture, balanced, offer_balanced
from streamrace.scenarios.full_size import config_of, subject
from streamrace.scenarios.mmlu import SAMPLE, load
from streamrace.scenarios.mmlu_batches import batches
from streamrace.scenarios.models import FULL_SIZE, build
from streamrace.scenarios.scenario import scenario

VOCAB = 259


def experts() -> MixtralExperts:
    model = build("mixtral", "tiny", vocab_size=VOCAB, seed=1)
    return next(one for one in model.modules() if isinstance(one, MixtralExperts))


def test_balanced_experts_compute_what_transformers_own_do_where_the_routing_is_balanced() -> None:
    layer = experts()
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(8, 32, generator=generator)
    chosen = torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0], [1, 0], [3, 2], [2, 1], [0, 3]])  # each four times
    weights = torch.rand(8, CHOSEN, generator=generator)
    layer.config._experts_implementation = "eager"
    theirs = layer(hidden, chosen, weights)
    torch.testing.assert_close(balanced(layer, hidden, chosen, weights), theirs)
    layer.config._experts_implementation = "batched_mm"  # what a live scenario takes
    torch.testing.assert_close(layer(hidden, chosen, weights), theirs)


def test_balanced_experts_give_and_take_gradients_for_any_number_of_tokens() -> None:
    layer = experts()
    hidden = torch.randn(7, 32, requires_grad=True)
    chosen = torch.zeros(7, CHOSEN, dtype=torch.int64)  # all to one: not balanced, and computed all the same
    balanced(layer, hidden, chosen, torch.ones(7, CHOSEN)).sum().backward()
    assert hidden.grad is not None and layer.down_proj.grad is not None
    assert bool(layer.down_proj.grad.abs().sum(dim=(1, 2)).gt(0).all())


def test_mixtral_of_full_size_has_its_published_parameters_and_balanced_experts() -> None:
    """46.7 billion, of which a token meets 12.9 with its embedding (arXiv 2401.04088)."""
    full = FULL_SIZE["mixtral-8x7b"]
    assert round(full.parameters / 1e9, 1) == 46.7
    assert round((full.matrix_parameters + full.vocab * full.hidden) / 1e9, 1) == 12.9
    offer_balanced()
    config = config_of(full)
    assert config._experts_implementation == BALANCED
    with torch.device("meta"):
        model = MixtralForCausalLM(config)
    assert sum(one.numel() for one in model.parameters()) == full.parameters


def test_a_convolutional_network_tells_letters_from_bytes_and_does_not_see_the_answer() -> None:
    model = build("convnext", "tiny", vocab_size=VOCAB, seed=1)
    assert isinstance(model, TextAsPicture)
    batch = next(batches(load(SAMPLE), sequence=64, micro_batch=4, rank=0, world=1, seed=0))
    found = model(**batch)
    assert found.logits.shape == (4, 4) and 1.0 < found.loss.item() < 2.0  # a guess: ln(4) = 1.39
    other = dict(batch)
    at = batch["attention_mask"].sum(dim=1, keepdim=True) - 2
    assert set(batch["input_ids"].gather(1, at).flatten().tolist()) <= set(map(ord, "ABCD"))
    other["input_ids"] = batch["input_ids"].scatter(1, at, ord("A"))
    assert torch.equal(model(**other).logits, found.logits)


@pytest.mark.parametrize("sequence", [8, 40, 64, 100])
def test_a_picture_is_made_of_any_number_of_bytes(sequence: int) -> None:
    model = build("convnext", "tiny", vocab_size=VOCAB, seed=1)
    ids = torch.full((2, sequence), ord("B"))
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum()
    loss.backward()
    assert all(one.grad is not None for one in model.parameters())


def test_it_has_no_gradient_checkpointing_and_says_so() -> None:
    with pytest.raises(ValueError, match="ConvNeXt has no gradient checkpointing: leave it out"):
        build("convnext", "tiny", vocab_size=VOCAB, seed=1, gradient_checkpointing=True)
    with pytest.raises(ScenarioError, match="ConvNeXt has no gradient checkpointing: leave it out"):
        scenario(model="convnext", checkpointing=True)


def test_megatrons_gpt_makes_its_output_with_the_embedding_and_without_a_module_for_it(tmp_path: Path) -> None:
    """From a configuration in a folder, as ``make paper`` records few layers: transformers' own model, bit by bit."""
    config = config_of(replace(FULL_SIZE["gpt-18b"], layers=1, hidden=48, intermediate=192, heads=4, vocab=VOCAB))
    config.save_pretrained(tmp_path)
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(config)
    ours = subject(str(tmp_path)).make()
    ours.load_state_dict({name: value for name, value in theirs.state_dict().items() if name != "lm_head.weight"})
    assert "lm_head" in dict(theirs.named_children())
    assert list(dict(ours.named_children())) == ["gpt_neox"]
    tokens = torch.arange(10).reshape(2, 5)
    found = [model(input_ids=tokens, labels=tokens) for model in (theirs, ours)]
    assert torch.equal(found[0].logits, found[1].logits)
    for one in found:
        one.loss.backward()
    gradients = [dict(model.named_parameters())["gpt_neox.embed_in.weight"].grad for model in (theirs, ours)]
    assert torch.equal(*gradients)
