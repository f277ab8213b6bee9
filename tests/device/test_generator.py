"""The generator of random numbers: a seed and an offset as CUDA's, from which alone the numbers follow."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from judged import story
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def here(*shape: int) -> Tensor:
    return torch.full(shape, 0.5, device="cuda")


DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(9, device="cuda"),
    "randn": lambda: torch.randn(3, 3, device="cuda"),
    "randint": lambda: torch.randint(99, (9,), device="cuda"),
    "randperm": lambda: torch.randperm(9, device="cuda"),
    "in place": lambda: here(9).exponential_(),
    "dropout": lambda: torch.nn.functional.dropout(here(99)),
    "bernoulli": lambda: torch.bernoulli(here(99)),
    "multinomial": lambda: torch.multinomial(here(99), 9),
    "poisson": lambda: torch.poisson(here(99) * 8),
    "gamma": lambda: torch._standard_gamma(here(9)),
    "binomial": lambda: torch.binomial(here(9) * 8, here(9)),
    "lstm": lambda: torch.nn.LSTM(3, 3, 2, dropout=0.5, device="cuda")(here(2, 3))[0].detach(),
}


def test_a_state_is_a_seed_and_an_offset_that_each_draw_moves_on() -> None:
    torch.cuda.manual_seed(7)
    assert torch.cuda.get_rng_state().view(torch.int64).tolist() == [7, 0]
    assert torch.cuda.initial_seed() == 7
    own = torch.cuda.default_generators[torch.cuda.current_device()]
    for draw in DRAWS.values():
        before = own.get_offset()
        draw()
        assert own.get_offset() > before and own.get_offset() % 4 == 0
    torch.cuda.manual_seed(7)
    torch.rand(1_000_000, device="cuda")  # more than the threads of a GPU take in one go
    assert own.get_offset() == 8
    torch.rand(0, device="cuda")
    assert own.get_offset() == 8


@pytest.mark.parametrize("name", list(DRAWS))
def test_equal_states_give_equal_numbers_whatever_came_before(name: str) -> None:
    torch.manual_seed(3)
    torch.rand(5, device="cuda")
    state = torch.cuda.get_rng_state()
    first, second = DRAWS[name](), DRAWS[name]()
    torch.randn(7, device="cuda")
    torch.cuda.manual_seed(11)
    torch.cuda.set_rng_state(state)
    assert torch.equal(DRAWS[name](), first)
    assert torch.equal(DRAWS[name](), second) and not torch.equal(first, second)


def test_numbers_belong_to_the_moment_of_issue_and_the_host_waits_for_none() -> None:
    torch.cuda.manual_seed(3)
    expected = [draw().cpu() for draw in DRAWS.values()]
    torch.cuda.manual_seed(3)
    with story(poisson=1000) as told:
        made = [draw() for draw in DRAWS.values()]
        torch.cuda.manual_seed(4)
        torch.cuda.synchronize()
    assert [one.tolist() for one in made] == [one.tolist() for one in expected]
    assert told.races == []


def test_the_first_draw_after_a_seed_is_the_cpus() -> None:
    torch.manual_seed(5)
    assert torch.equal(torch.randn(40, device="cuda").cpu(), torch.randn(40))
    own = torch.Generator(device="cuda").manual_seed(6)
    on_host = torch.rand(4, generator=torch.Generator().manual_seed(6))
    assert torch.equal(torch.rand(4, device="cuda", generator=own).cpu(), on_host)


def test_a_generator_of_ones_own_has_cudas_face() -> None:
    own = torch.Generator(device="cuda")
    assert own.device == torch.device("cuda", 0) and own.initial_seed() == torch.Generator().initial_seed()
    own.manual_seed(5).set_offset(8)
    assert (own.initial_seed(), own.get_offset()) == (5, 8)
    copy, shared = own.clone_state(), own.graphsafe_get_state()
    drawn = torch.rand(4, device="cuda", generator=own)
    assert (copy.get_offset(), shared.get_offset()) == (8, 12)
    assert torch.equal(torch.rand(4, device="cuda", generator=copy), drawn)
    other = torch.Generator(device="cuda")
    other.graphsafe_set_state(shared)
    torch.rand(4, device="cuda", generator=other)
    assert own.get_offset() == 16
    other = torch.Generator(device="cuda")
    other.set_state(own.get_state())
    assert (other.initial_seed(), other.get_offset()) == (5, 16)
    assert own.seed() == own.initial_seed() and own.get_offset() == 0
    with pytest.raises(RuntimeError, match="multiple of 4"):
        own.set_offset(3)
    with pytest.raises(RuntimeError, match="wrong size"):
        own.set_state(torch.get_rng_state())
    with pytest.raises(RuntimeError, match="'cuda' device type for generator"):
        torch.rand(4, device="cuda", generator=torch.Generator())


def test_a_fork_of_the_generators_leaves_them_as_they_were() -> None:
    torch.cuda.manual_seed_all(2)
    with torch.random.fork_rng():
        torch.rand(4, device="cuda")
        torch.cuda.manual_seed_all(9)
    assert [one.view(torch.int64).tolist() for one in torch.cuda.get_rng_state_all()] == [[2, 0]]


def test_a_checkpoint_goes_on_where_the_run_was() -> None:
    def steps(count: int) -> list[list[float]]:
        return [torch.nn.functional.dropout(here(16)).tolist() for _ in range(count)]

    torch.manual_seed(1)
    steps(3)
    file = io.BytesIO()
    torch.save({"rng": torch.cuda.get_rng_state_all()}, file)
    going_on = steps(2)
    torch.manual_seed(8)
    steps(1)
    file.seek(0)
    torch.cuda.set_rng_state_all(torch.load(file)["rng"])
    assert steps(2) == going_on


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_activation_that_is_computed_again_has_the_same_mask(reentrant: bool) -> None:
    def gradient(twice: bool) -> list[float]:
        torch.manual_seed(4)
        weight = torch.ones(64, device="cuda", requires_grad=True)

        def dropped(one: Tensor) -> Tensor:
            return torch.nn.functional.dropout(one * 2, 0.5).square()

        made = checkpoint(dropped, weight, use_reentrant=reentrant) if twice else dropped(weight)
        made.sum().backward()
        torch.rand(4, device="cuda")
        return [*weight.grad.tolist(), *torch.rand(3, device="cuda").tolist()]

    assert gradient(True) == gradient(False)
