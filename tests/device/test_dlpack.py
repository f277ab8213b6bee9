"""What comes from outside the device's own operators: other libraries, other layouts, linear algebra's libraries."""

from __future__ import annotations

import copy
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn


def slow_ones() -> torch.Tensor:
    return torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")


def test_dlpack_shares_no_memory_but_copies_to_the_host() -> None:
    made = slow_ones()
    host = numpy.from_dlpack(made, device="cpu")
    assert (host == 64).all()
    for take in (torch.from_dlpack, numpy.from_dlpack, torch.utils.dlpack.to_dlpack, torch.to_dlpack):
        with pytest.raises((BufferError, ValueError), match="DLPack"):
            take(made)
    with pytest.raises(BufferError, match="only by a copy"):
        made.__dlpack__(dl_device=(1, 0), copy=False)
    assert torch.equal(torch.from_dlpack(torch.arange(3)), torch.arange(3))
    assert (numpy.from_dlpack(torch.arange(3)) == numpy.arange(3)).all()


def test_safetensors_right_after_a_step_has_the_values_of_the_step() -> None:
    from safetensors.torch import load_file, save_file

    here = nn.Linear(8, 8)
    there = copy.deepcopy(here).cuda()
    for net, device in ((here, "cpu"), (there, "cuda")):
        net(torch.ones(4, 8, device=device)).square().sum().backward()
        torch.optim.AdamW(net.parameters(), lr=0.1).step()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_file(there.state_dict(), file)
        saved = load_file(file)
        loaded = load_file(file, device="cuda")
    for name, value in here.state_dict().items():
        assert torch.equal(saved[name], value)
        assert loaded[name].is_cuda and torch.equal(loaded[name].cpu(), value)


def test_a_pretrained_model_that_is_saved_right_after_a_step_has_the_values_of_the_step() -> None:
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    here = LlamaForCausalLM(LlamaConfig(**small, vocab_size=32, num_key_value_heads=2))
    there = copy.deepcopy(here).cuda()
    ids = torch.arange(16).view(2, 8)
    for net, device in ((here, "cpu"), (there, "cuda")):
        net(input_ids=ids.to(device), labels=ids.to(device)).loss.backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    with tempfile.TemporaryDirectory() as folder:
        there.save_pretrained(folder)
        saved = load_file(Path(folder) / "model.safetensors")
    assert saved.keys() == here.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in here.state_dict().items())


@pytest.mark.parametrize("how", ["cpu", "tolist"])
def test_a_thread_of_the_programs_own_reads_what_was_computed_before_it_began(how: str) -> None:
    made = slow_ones()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(getattr(made, how)()))
    thread.start()
    thread.join()
    assert (torch.as_tensor(seen[0]) == 64).all()


def test_nested_tensors_of_the_jagged_layout_work() -> None:
    parts = [torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)]
    results = []
    for device in ("cpu", "cuda"):
        nested = torch.nested.nested_tensor([one.to(device) for one in parts], layout=torch.jagged, requires_grad=True)
        made = nn.functional.relu(nested * 2 - 3) @ torch.ones(3, 2, device=device)
        made.values().sum().backward()
        results.append([made.values().cpu(), nested.grad.values().cpu()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_other_layouts_are_refused_by_name_and_with_what_to_do() -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"streamrace: .*dense tensors only"):
        torch.nested.nested_tensor([slow_ones(), slow_ones()], layout=torch.strided) + 1
    with pytest.raises((RuntimeError, NotImplementedError), match=r"streamrace: .*dense tensors only"):
        torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device="cuda")
    with pytest.raises((RuntimeError, NotImplementedError), match=r"streamrace: .*dense tensors only"):
        slow_ones().to_sparse()
    with pytest.raises((RuntimeError, NotImplementedError), match=r"streamrace: .*dense tensors only"):
        slow_ones().to_sparse_csr()
    with pytest.raises((RuntimeError, NotImplementedError), match=r"streamrace: .*dense tensors only"):
        torch.quantize_per_tensor(slow_ones(), 0.1, 0, torch.qint8)


def test_linear_algebra_gives_the_bits_of_the_cpu() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(2, 12, 12), torch.randn(2, 12, 3)
    both = one @ one.mT
    for here, there in (
        (torch.linalg.svdvals(one), torch.linalg.svdvals(one.cuda())),
        (torch.linalg.eigvalsh(both), torch.linalg.eigvalsh(both.cuda())),
        (torch.linalg.matrix_norm(one, 2), torch.linalg.matrix_norm(one.cuda(), 2)),
    ):
        assert torch.equal(here, there.cpu())
    # Above the kernels torch goes another way for CUDA (its driver is "gels"), so these have not the same bits.
    here, there = torch.linalg.lstsq(one, other).solution, torch.linalg.lstsq(one.cuda(), other.cuda()).solution
    assert torch.allclose(here, there.cpu(), atol=1e-3)
