"""Backward passes on streams: as torch's engine orders them, and what it leaves to the program is reported."""

from __future__ import annotations

import pytest
import torch
from judged import Story, story
from torch import Tensor

from streamrace.trace.records import Stack


def sites(told: Story) -> dict[str, list[tuple[str, int]]]:
    """Of each kernel the innermost functions and lines, in the order of issue."""
    frames = {stack.id: stack.frames for stack in told.records if isinstance(stack, Stack)}
    made: dict[str, list[tuple[str, int]]] = {}
    for launch in told.launches:
        first = frames[launch.stack][0]
        made.setdefault(launch.kernel, []).append((first.function, first.line))
    return made


def layer(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def wide(x: Tensor) -> Tensor:
    return x.expand(8, 8)


def test_backward_work_has_the_line_of_its_forward_work() -> None:
    with story() as told:
        w, b = (torch.ones(8, size, device="cuda", requires_grad=True) for size in (8, 1))
        y = layer(w, w)
        z = (y * wide(b)).sum()
        (y > 0).sum()  # no node is made for a comparison
        z.backward()
        w.grad.sum().item()
    seen = sites(told)
    line = layer.__code__.co_firstlineno + 1
    assert seen["aten::mm"] == [("layer", line)] + 2 * [("layer (backward)", line)]
    assert ("wide (backward)", wide.__code__.co_firstlineno + 1) in seen["aten::sum"]  # an expand's backward is a sum
    here = "test_backward_work_has_the_line_of_its_forward_work"
    assert {function for function, _ in seen["aten::mul"]} == {here, f"{here} (backward)"}


def test_what_a_checkpoint_computes_again_does_not_make_other_lines_forgotten() -> None:
    """It is computed again on autograd's thread, whose nodes are numbered from the beginning, as the program's are."""
    from torch.utils.checkpoint import checkpoint

    def block(x: Tensor) -> Tensor:
        for _ in range(50):
            x = layer(x, w)
        return x

    with story() as told:
        w = torch.eye(8, device="cuda", requires_grad=True)
        x = w
        for _ in range(4):
            x = checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
        x.sum().backward()
    functions = [function for function, _ in sites(told)["aten::mm"]]
    assert set(functions) == {"layer", "layer (backward)"} and functions.count("layer (backward)") == 2 * 200


def test_a_backward_pass_in_a_second_thread_has_forward_lines_too() -> None:
    import threading

    with story() as told:
        w = torch.ones(8, 8, device="cuda", requires_grad=True)

        def train() -> None:
            layer(w, w).sum().backward()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert [function for function, _ in sites(told)["aten::mm"]] == ["layer", "layer (backward)", "layer (backward)"]


@pytest.mark.parametrize("joined", [True, False])
def test_a_gradient_of_a_side_stream_needs_the_join_that_cuda_would_need(joined: bool) -> None:
    with story(mm=1000) as told:
        side, w = torch.cuda.Stream(), torch.ones(8, 8, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            (w @ w).sum().backward()  # the engine joins what it used with the caller's stream, which is this one
        if joined:
            torch.cuda.default_stream().wait_stream(side)
        total = w.grad.sum()
    if joined:
        assert told.races == [] and total.item() == 1024
    else:
        assert told.races
        assert all(race.second.stream == "default" for race in told.races)


def test_a_backward_pass_under_another_stream_than_its_forward_pass_is_joined_by_the_engine() -> None:
    with story(mm=1000) as told:
        w = torch.ones(8, 8, device="cuda", requires_grad=True)
        loss = (w @ w).sum()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            loss.backward()
            total = w.grad.sum()
        side.synchronize()
        assert total.item() == 1024
    assert told.races == []
    assert {launch.stream for launch in told.launches if launch.kernel == "aten::mm"} == {0}


@pytest.mark.parametrize("waits", ["both", "before", "behind"])
def test_a_hook_on_a_side_stream(waits: str) -> None:
    side = torch.cuda.Stream()
    norms = []

    def measure(parameter: Tensor) -> None:
        if waits != "behind":
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            norms.append(parameter.grad.square().sum())

    with story(mm=1000, square=1000) as told:
        w = torch.ones(8, 8, device="cuda", requires_grad=True)
        w.register_post_accumulate_grad_hook(measure)
        (w @ w).sum().backward()
        if waits != "before":
            torch.cuda.current_stream().wait_stream(side)
        total = norms[0] * 1
    if waits == "both":
        assert told.races == [] and total.item() == 8 * 8 * 16 * 16
    elif waits == "before":
        assert told.pairs == [("aten::sum", "aten::mul")]  # what the hook made is used too early
    else:
        (race,) = {race.second.stack[0].function: race for race in told.races}.values()
        assert race.second.stack[0].function == "test_a_hook_on_a_side_stream.<locals>.measure"
