"""Beside healthy training the watch says nothing, changes nothing, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as torch_optimizer

from streamrace.detectors import NanWatch
from tests.live.training import WORLDS, Job, Model, hooks_left, train

WATCH = {"checksums": True}
FORMS = [form if form in ("plain", "hpz") else pytest.param(form, marks=pytest.mark.wide) for form in WORLDS]


@pytest.mark.parametrize(
    ("form", "precision", "steps"),
    [
        ("plain", "scaled", 200),  # a loss scale that overflows at first, so that steps are skipped
        ("zero1", "fp16", 12),
        ("zero3", "fp16", 12),
        ("zero2", "fp32", 10),
        ("hpz", "bf16", 5),
        pytest.param("ddp", "scaled", 40, marks=pytest.mark.wide),
        pytest.param("zero1", "fp16", 200, marks=pytest.mark.wide),
        pytest.param("zero3", "fp16", 30, marks=pytest.mark.wide),
    ],
)
def test_nothing_is_reported_over_healthy_steps(form: str, precision: str, steps: int, tmp_path: Path) -> None:
    """With loss scaling, gradient clipping, an attention mask of -inf, accumulation, and skipped overflow steps."""
    accumulation = 1 if steps == 200 else 2
    told = train(tmp_path, form, steps=steps, accumulation=accumulation, precision=precision, clip=1.0, watch=WATCH)
    assert set(told.findings.values()) == {None}
    assert not any(told.warned.values())
    skipped = {more["skipped"] for more in told.more.values()}
    assert (skipped != {0}) is (precision in ("scaled", "fp16")), "the story needs skipped steps where there is a scale"
    assert {more["steps"] for more in told.more.values()} == {steps}, "the watch counts what training counts"


@pytest.mark.parametrize("form", FORMS)
def test_training_computes_the_same_bits_with_the_watch(form: str, tmp_path: Path) -> None:
    bare = train(tmp_path / "bare", form, steps=4, clip=1.0)
    watched = train(tmp_path / "watched", form, steps=4, clip=1.0, watch=WATCH)
    assert watched.losses == bare.losses
    assert watched.final == bare.final


@pytest.mark.parametrize("form", FORMS)
def test_removing_the_watch_leaves_the_model_as_it_was(form: str, tmp_path: Path) -> None:
    def note(job: Job) -> None:
        job.more = {"before": _traces(job)}

    told = train(tmp_path, form, steps=3, plant=note, at=(-1, 1, 1), watch=None)
    watched = train(tmp_path, form, steps=3, watch=WATCH)
    for rank, more in told.more.items():
        assert watched.more[rank]["left"] == more["left"]


def _traces(job: Job) -> int:
    return hooks_left(job.model)


def test_hooks_of_torch_and_of_the_scaler_are_gone_too() -> None:
    before = (
        dict(torch_optimizer._global_optimizer_pre_hooks),
        dict(torch_optimizer._global_optimizer_post_hooks),
        GradScaler.update,
        GradScaler.scale,
    )
    model = Model()
    first, second = NanWatch(model), NanWatch(model)
    first.close()
    second.close()
    after = (
        dict(torch_optimizer._global_optimizer_pre_hooks),
        dict(torch_optimizer._global_optimizer_post_hooks),
        GradScaler.update,
        GradScaler.scale,
    )
    assert after == before
    assert hooks_left(model) == 0


def test_gradients_that_are_skipped_without_a_loss_scale_are_a_finding() -> None:
    """A skipped step is only healthy where a dynamic loss scale is looking for its limit."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NanWatch(model) as watch:
        batch = _batch()
        model.plant = "inf gradient"
        model(**batch)["loss"].backward()
        optimizer.step()
    assert watch.finding is not None
    assert watch.finding.phase == "backward"


def test_padding_that_is_nan_and_never_reaches_the_loss_is_no_finding() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            hidden = self.first(x)
            return self.last(torch.where(torch.isnan(hidden), torch.zeros(()), hidden)).sum()

    model = Padded()
    x = torch.randn(3, 4)
    x[2] = torch.nan
    with torch.no_grad(), NanWatch(model) as watch:
        model(x)
    assert watch.finding is None


def test_evaluation_between_steps_is_not_counted_as_training() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with NanWatch(model, bound={"outputs": 1e-9}, on_finding=lambda finding: None) as watch:
        model.eval()
        with torch.no_grad():
            model(**_batch())
        model.train()
    assert watch.finding is None
    del optimizer


def _batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(18).reshape(2, 9)
    return {"input_ids": ids[:, :-1], "features": torch.ones(2, 4), "labels": ids[:, 1:].clone()}
