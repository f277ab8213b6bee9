"""The small models, and the published ones that they stand for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from streamrace.scenarios.full_size import config_of
from streamrace.scenarios.models import ATTENTIONS, FULL_SIZE, LANGUAGE, SIZES, FullModel, build

VOCAB = 259
families = pytest.mark.parametrize("family", LANGUAGE)
dense = pytest.mark.parametrize("family", ["llama", "falcon"])


def example(batch: int = 2, sequence: int = 12) -> dict[str, torch.Tensor]:
    ids = torch.arange(batch * sequence).reshape(batch, sequence) % VOCAB
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def train_one_step(model: nn.Module) -> tuple[float, dict[str, torch.Tensor]]:
    loss = model(**example()).loss
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("family", "size"), [one for one in SIZES if one[0] in LANGUAGE])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_size_trains(family: str, size: str, attention: str, dtype: torch.dtype) -> None:
    model = build(family, size, vocab_size=VOCAB, seed=1, attention=attention, dtype=dtype)

    assert {p.dtype for p in model.parameters()} == {dtype}
    loss, gradients = train_one_step(model)

    assert 5 < loss < 6.5  # random weights guess: ln(259) = 5.6
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@families
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(family: str) -> None:
    first, again, other = (build(family, "tiny", vocab_size=VOCAB, seed=seed).state_dict() for seed in (3, 3, 4))

    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@families
def test_building_leaves_the_global_random_state_alone(family: str) -> None:
    before = torch.get_rng_state()
    build(family, "tiny", vocab_size=VOCAB, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@families
def test_bf16_weights_are_the_rounded_float32_weights_and_positions_are_not_rounded(family: str) -> None:
    exact = build(family, "tiny", vocab_size=VOCAB, seed=3)
    rounded = build(family, "tiny", vocab_size=VOCAB, seed=3, dtype=torch.bfloat16)

    for (name, p), q in zip(exact.named_parameters(), rounded.parameters(), strict=True):
        assert torch.equal(p.to(torch.bfloat16), q), name
    for (name, b), c in zip(exact.named_buffers(), rounded.buffers(), strict=True):
        assert torch.equal(b, c) and b.dtype == c.dtype, name


@families
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_two_forwards_agree_as_there_is_no_dropout(family: str, attention: str) -> None:
    model = build(family, "tiny", vocab_size=VOCAB, seed=3, attention=attention)
    assert model.training
    assert torch.equal(model(**example()).logits, model(**example()).logits)


@families
def test_both_attentions_compute_the_same(family: str) -> None:
    logits = [build(family, "small", vocab_size=VOCAB, seed=3, attention=a)(**example()).logits for a in ATTENTIONS]
    text = example()["attention_mask"].bool()
    torch.testing.assert_close(logits[0][text], logits[1][text])


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_changes_nothing_but_the_work(family: str, dtype: torch.dtype) -> None:
    loss, gradients = train_one_step(build(family, "tiny", vocab_size=VOCAB, seed=3, dtype=dtype))
    with Operations() as plain:
        train_one_step(build(family, "tiny", vocab_size=VOCAB, seed=3, dtype=dtype))
    model = build(family, "tiny", vocab_size=VOCAB, seed=3, dtype=dtype, gradient_checkpointing=True)
    with Operations() as recomputed:
        again, gradients_again = train_one_step(model)

    assert again == loss
    assert all(torch.equal(gradients[name], gradients_again[name]) for name in gradients)
    assert len(recomputed.names) > len(plain.names)


class Operations(TorchDispatchMode):
    """Notes the name of every operation that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))

    @property
    def host_reads(self) -> int:
        return self.names.count("aten._local_scalar_dense.default")


def operations(model: nn.Module, batch: dict[str, torch.Tensor]) -> Operations:
    with Operations() as seen:
        model(**batch).loss.backward()
    return seen


@families
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_eager_attention_with_a_mask_never_reads_a_value_on_the_host(family: str, gradient_checkpointing: bool) -> None:
    model = build(family, "tiny", vocab_size=VOCAB, seed=3, gradient_checkpointing=gradient_checkpointing)
    assert operations(model, example()).host_reads == 0


def test_llama_without_a_mask_or_with_sdpa_does_read_a_value() -> None:
    """The limit that the module's docstring states: if transformers drops it, the docstring is out of date."""
    unmasked = {name: tensor for name, tensor in example().items() if name != "attention_mask"}
    eager = build("llama", "tiny", vocab_size=VOCAB, seed=3)
    sdpa = build("llama", "tiny", vocab_size=VOCAB, seed=3, attention="sdpa")

    assert operations(eager, unmasked).host_reads == 1
    assert operations(sdpa, unmasked).host_reads == 1
    assert operations(sdpa, example()).host_reads > 0


@dense
def test_odd_parameters_need_padding(family: str) -> None:
    sizes = {name: p.numel() for name, p in build(family, "odd", vocab_size=VOCAB, seed=1).named_parameters()}

    assert [name for name, count in sizes.items() if count % 8 == 0] == []
    divisible = {name.rpartition(".")[0].rpartition(".")[2] for name, count in sizes.items() if count % 4 == 0}
    assert divisible <= {"q_proj", "k_proj", "v_proj", "o_proj", "query_key_value", "dense"}


def test_frozen_patterns_freeze_what_they_match_and_nothing_else() -> None:
    frozen = ("*.layers.0.*", "model.embed_tokens.weight")
    model = build("llama", "tiny", vocab_size=VOCAB, seed=1, frozen=frozen)

    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (".layers.0." not in name and "embed_tokens" not in name), name
    _, gradients = train_one_step(model)
    assert "model.layers.1.mlp.up_proj.weight" in gradients
    assert "model.layers.0.mlp.up_proj.weight" not in gradients


@pytest.mark.parametrize("name", ["lm_head.weight", "transformer.word_embeddings.weight"])
def test_falcons_shared_embedding_can_be_frozen_by_either_name(name: str) -> None:
    model = build("falcon", "tiny", vocab_size=VOCAB, seed=1, frozen=[name])
    assert not model.get_parameter("lm_head.weight").requires_grad
    assert not model.get_parameter("transformer.word_embeddings.weight").requires_grad


@families
def test_a_frozen_embedding_and_gradient_checkpointing_go_together(family: str) -> None:
    model = build(family, "tiny", vocab_size=VOCAB, seed=1, frozen=["*embed*"], gradient_checkpointing=True)
    _, gradients = train_one_step(model)
    assert gradients.keys() == {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        ({"family": "bloom"}, "Unknown model family 'bloom': choose one of llama, falcon, mixtral, convnext."),
        ({"size": "huge"}, "Unknown size 'huge' of llama: choose one of tiny, small, odd."),
        ({"attention": "flash"}, "Unknown attention 'flash': choose one of eager, sdpa."),
        ({"vocab_size": 0}, "A vocabulary of 0 words is too small: give at least 1."),
        ({"frozen": ["*.nothing"]}, "No parameter matches the frozen pattern '*.nothing'; a name looks like 'model."),
        ({"frozen": ["*"]}, "The frozen patterns '*' leave no parameter to train."),
    ],
)
def test_a_misuse_is_one_clear_sentence(misuse: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        build(**({"family": "llama", "size": "tiny", "vocab_size": VOCAB, "seed": 1} | misuse))  # type: ignore[arg-type]
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("falcon-7b", 6_921_720_704),
        ("falcon-40b", 41_303_293_952),
    ],
)
def test_full_size_models_have_the_published_number_of_parameters(name: str, published: int) -> None:
    assert FULL_SIZE[name].parameters == published


def on_meta(model: FullModel, layers: int) -> nn.Module:
    """The full-size model by transformers' own classes, without memory, cut to ``layers`` layers."""
    with torch.device("meta"):
        made: nn.Module = AutoModelForCausalLM.from_config(config_of(replace(model, layers=layers)))
    return made


@pytest.mark.parametrize("name", FULL_SIZE)
def test_the_formula_agrees_with_transformers(name: str) -> None:
    model = FULL_SIZE[name]
    one, two = (sum(p.numel() for p in on_meta(model, layers).parameters()) for layers in (1, 2))
    assert one + (model.layers - 1) * (two - one) == model.parameters


class MatrixFlops(Operations):
    """Counts two operations per multiplication of the matrix products that torch dispatches."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if str(func) in ("aten.mm.default", "aten.bmm.default"):
            self.flops += 2 * out.numel() * args[0].shape[-1]
        return out


@pytest.mark.parametrize("size", ["tiny", "small", "odd"])
@dense
def test_forward_flops_are_those_of_the_products_that_torch_computes(family: str, size: str) -> None:
    shape = next(shape for (of, name), shape in SIZES.items() if (of, name) == (family, size))
    model = FullModel(name=size, family="llama" if family == "llama" else "falcon", vocab=VOCAB, **shape._asdict())
    with torch.no_grad(), MatrixFlops() as counted:
        build(family, size, vocab_size=VOCAB, seed=1)(**example(batch=2, sequence=12))
    assert model.forward_flops(24, 12) == counted.flops


def test_llama_2_7b_computes_two_operations_per_parameter_and_token() -> None:
    model = FULL_SIZE["llama-2-7b"]
    assert model.forward_flops(4096, 1) / 4096 == pytest.approx(2 * model.parameters, rel=0.03)
    assert model.forward_flops(0, 4096) == 0
    with pytest.raises(ValueError, match="100 tokens are not a whole number of sequences of 64 tokens"):
        model.forward_flops(100, 64)
