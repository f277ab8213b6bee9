"""What a dry run says to who reads a value that is not there, and what has values all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

SMALL = 256


def begin(*, real: int = SMALL) -> None:
    from streamrace.device import dry

    dry.install(dry.World(), real=real)


def unknown(size: int = 1000) -> torch.Tensor:
    return torch.zeros(size, device="cuda")


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "bool(tensor)": lambda x: bool(x.sum() > 0),
    "int(tensor)": lambda x: int(x.sum()),
    "float(tensor)": lambda x: float(x.sum()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, x.long()),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_is_refused_at_its_line(read: str) -> None:
    begin()
    with pytest.raises(RuntimeError) as refused:
        READS[read](unknown())
    sentence = str(refused.value)
    assert sentence.startswith("streamrace: a dry run has no values, and ") and "test_dry_reading.py:" in sentence
    assert "(<lambda>)" in sentence and "leave it to a live run" in sentence


def test_a_number_that_is_only_told_needs_no_value() -> None:
    begin()
    loss = unknown().mean()
    one = loss.item()
    assert f"{loss}" == f"{one}" == "?" and f"{one:8.3f}" == "       ?" and str([one / 2 + 1, -one]) == "[?, ?]"
    assert f"loss {sum([one, one]) / 2:.2f}, {round(one, 3)}" == "loss   ?, ?"
    assert str(loss) == "tensor(?, device='cuda:0', dtype=torch.float32)"
    assert "size=(1000,)" in repr(unknown())


DECISIONS: dict[str, Callable[[Any], Any]] = {
    "larger": lambda n: n > 1,
    "equal": lambda n: n == 0,
    "true": lambda n: bool(n),
    "int": lambda n: int(n),
    "index": lambda n: [1, 2][n],
    "key": lambda n: {n: 1},
    "max": lambda n: max(n, 1.0),
    "isnan": lambda n: math.isnan(n),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_by_such_a_number_is_refused_with_both_lines(decision: str) -> None:
    begin()
    number = unknown().mean().item()
    told = r"test_dry_reading.py:\d+ \(<lambda>\) decides .* read at .*test_dry_reading.py:\d+ "
    with pytest.raises(RuntimeError, match=told):
        DECISIONS[decision](number)


def test_what_follows_from_the_host_and_is_small_has_its_value() -> None:
    begin()
    lengths = torch.tensor([3, 5, 2]).cuda()
    assert lengths.max().item() == 5 and (lengths.cumsum(0) - 1).tolist() == [2, 7, 9]
    assert lengths[lengths > 2].cpu().equal(torch.tensor([3, 5])) and torch.arange(4, device="cuda").sum().item() == 6
    zeros = unknown()
    zeros[:3] = lengths.float()
    with pytest.raises(RuntimeError, match="no values"):  # a part of what is not known
        zeros[:3].tolist()


def test_what_follows_from_what_is_not_known_is_not_known() -> None:
    begin()
    small = torch.ones(4, device="cuda")
    assert small.sum().item() == 4
    small += unknown()[:4]
    with pytest.raises(RuntimeError, match="no values"):
        small.tolist()
    small.fill_(2)
    assert small.tolist() == [2.0] * 4
    small[1:3] = unknown()[:2]
    assert small[:1].tolist() == [2.0] and small[3:].tolist() == [2.0]
    with pytest.raises(RuntimeError, match="no values"):
        small[2:].tolist()


def test_memory_that_nobody_wrote_has_no_value() -> None:
    begin()
    with pytest.raises(RuntimeError, match="no values"):
        torch.empty(4, device="cuda").tolist()


def test_random_numbers_are_a_live_runs_where_others_were_left_out_too() -> None:
    own = torch.Generator(device="cuda").manual_seed(3)
    begin()
    torch.cuda.manual_seed(3)
    first = torch.rand(4, device="cuda").tolist()
    assert first == torch.rand(4, generator=torch.Generator().manual_seed(3)).tolist()
    with pytest.raises(RuntimeError, match="no values"):
        torch.rand(1000, device="cuda").tolist()
    own.set_state(torch.cuda.get_rng_state())
    assert torch.rand(4, device="cuda").tolist() == torch.rand(4, device="cuda", generator=own).tolist()


def test_a_pinned_copy_of_what_is_not_known_may_come_back_but_not_be_read() -> None:
    begin()
    host = torch.empty(1000).pin_memory()
    host.copy_(unknown(), non_blocking=True)
    back = host.cuda(non_blocking=True)
    with pytest.raises(RuntimeError, match="no values"):
        back[:4].tolist()
    with pytest.raises(RuntimeError, match="no values"):
        host.tolist()


def test_the_hosts_own_operators_on_such_a_copy_are_refused_at_the_next_wait() -> None:
    begin()
    host = torch.empty(1000).pin_memory()
    host.copy_(unknown(), non_blocking=True)
    _ = host.sum()
    with pytest.raises(RuntimeError, match="streamrace: a dry run has no values, and aten::sum reads one at test_dry"):
        torch.cuda.synchronize()


def test_a_gradient_scaler_is_told_that_nothing_is_infinite() -> None:
    begin(real=4)
    weight = torch.nn.Parameter(unknown())
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cuda", init_scale=8.0)
    scaler.scale(weight.half().sum()).backward()
    assert scaler.step(optimizer) is None
    scaler.update()


def test_who_only_asks_whether_all_went_well_is_told_so_and_no_count() -> None:
    from streamrace.device import dry

    begin()
    dry.TRUSTED["test_dry_reading.py"] = None
    loss = unknown().mean()
    assert not torch.isnan(loss) and f"{loss.item()}" == "?"
    dry.TRUSTED["test_dry_reading.py"] = 1.0
    assert loss.item() == 1.0 and not torch.isinf(loss)
    for count in (lambda: int(unknown().long().sum()), lambda: unknown().long().cpu()):
        with pytest.raises(RuntimeError, match="test_dry_reading.py"):
            count()


def test_an_operator_without_a_meta_kernel_is_refused_by_name_where_it_is_large() -> None:
    begin()

    @torch.library.custom_op("story::twice", mutates_args=(), device_types="cpu")
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert twice(torch.ones(4, device="cuda")).tolist() == [2.0] * 4
    with pytest.raises(NotImplementedError, match="story::twice has none: give it one"):
        twice(unknown())


def test_an_operator_whose_meta_kernel_says_otherwise_is_refused_where_it_is_large() -> None:
    begin()
    with pytest.raises(NotImplementedError, match="the meta kernel of aten::_fft_r2c says otherwise"):
        torch.fft.rfft(unknown())


def test_an_error_of_the_program_is_the_programs() -> None:
    begin()
    with pytest.raises(RuntimeError, match="size of tensor a"):
        unknown() + unknown(1001)
