"""What the watch says at its end, however it was begun: what was found, where it is saved, or that nothing was."""

from __future__ import annotations

import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from streamrace.detectors import NanWatch
from streamrace.detectors.live.actions import BadValue, BadValueWarning
from streamrace.detectors.live.lightning import NanWatchCallback

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Small(pl.LightningModule):
    """Two steps of it, the second of bad numbers where ``bad``."""

    def __init__(self, *, bad: bool) -> None:
        super().__init__()
        self.layer, self.bad = nn.Linear(4, 2), bad

    def forward(self, batch: Tensor) -> Tensor:
        return self.layer(batch).sum()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self(batch[0] * float("nan") if self.bad and index else batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def by_hand(watch: NanWatch, model: Small) -> None:
    optimizer = model.configure_optimizers()
    with watch:
        for index in range(2):
            model.training_step([torch.ones(3, 4)], index).backward()
            optimizer.step()


def by_lightning(callback: NanWatchCallback, model: Small) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(6, 4))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=3))


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("NaN watch: ")]


@pytest.mark.parametrize("way", ["by hand", "lightning"])
def test_a_clean_end_says_one_line(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = Small(bad=False)
    if way == "by hand":
        by_hand(NanWatch(model), model)
    else:
        by_lightning(NanWatchCallback(), model)
    assert said(capsys) == ["NaN watch: Small (10 parameters), 2 steps. Nothing was found."]


@pytest.mark.parametrize("way", ["by hand", "lightning"])
def test_what_was_saved_is_said_with_the_command_that_makes_its_page(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where warnings are not shown."""
    model, folder = Small(bad=True), tmp_path / "incidents"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BadValueWarning)
        if way == "by hand":
            by_hand(NanWatch(model, on_finding="save", folder=folder), model)
        else:
            by_lightning(NanWatchCallback(on_finding="save", folder=folder), model)
    (line,) = said(capsys)
    (saved,) = folder.iterdir()
    assert (saved / "incident.json").is_file()
    assert line.endswith(f"Saved: {saved} ('streamrace report {saved}' makes its page).")


def test_a_finding_that_ends_the_program_says_where_it_is_saved_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Small(bad=True)
    with pytest.raises(BadValue):
        by_hand(NanWatch(model, on_finding=["raise", "save"], folder=tmp_path / "it"), model)
    (line,) = said(capsys)
    assert f"Saved: {tmp_path / 'it'}" in line


def test_a_program_that_fails_by_itself_is_not_told_that_nothing_was_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyError), NanWatch(Small(bad=False)):
        raise KeyError("the program's own")
    assert said(capsys) == []
