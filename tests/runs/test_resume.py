"""A run that ends before its time goes on from its last checkpoint, with the losses that it would have had."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor

from streamrace.detectors import Values
from streamrace.device.ranks.cluster import RankFailed
from streamrace.device.scripts import WrongUse
from streamrace.reports.screen.terminal import Progress
from streamrace.repro.sessions import folders, session
from streamrace.scenarios import program
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.messages import Report, StepDone, TrainingEnded
from streamrace.scenarios.mmlu import SAMPLE, load
from streamrace.scenarios.mmlu_batches import batches
from streamrace.scenarios.scenario import Scenario, save, scenario
from streamrace.scenarios.sharding.checkpoint_index import FOLDER, INDEX, newest, of_step
from streamrace.scenarios.sharding.rings import TorchCollectives
from tests.cluster.patience import in_vain

OPTIONS: dict[str, Any] = {
    "size": "tiny",
    "sequence": 16,
    "micro_batch": 1,
    "accumulation": 1,
    "steps": 4,
    "sharding": "IIG",
    "checkpoint_every": 1,
}


@dataclass
class Run:
    """Losses by step and micro-batch of all ranks in the order of the data; checksums of what each rank has at last."""

    folder: Path
    losses: dict[tuple[int, int], float] = field(default_factory=dict)
    final: dict[int, dict[str, int]] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)

    def train(self, made: Scenario) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        save(made, self.folder / "scenario.json")

        def receive(rank: int, report: Report) -> None:
            if isinstance(report, StepDone):
                for step, micro_batch, loss in report.losses:
                    self.losses[step, (micro_batch - 1) * made.ranks + rank] = loss
            if isinstance(report, TrainingEnded):
                self.final[rank] = report.final

        program.run(made, simulated=True, folder=self.folder, receive=receive, started=self.pids.extend)


def of(values: Values, ranks: int) -> dict[tuple[int, int], float]:
    """As :attr:`Run.losses`."""
    return {
        (loss.step, (loss.micro_batch - 1) * ranks + rank): loss.value
        for rank, losses in values.losses.items()
        for loss in losses
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Not interrupted."""
    program.preload()
    run = Run(tmp_path_factory.mktemp("whole"))
    run.train(scenario(**OPTIONS))
    return run


def killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Rank 2 is killed in step 3, while the others wait for it in a reduce-scatter."""
    original = TorchCollectives.reduce_scatter

    def reduce_scatter(self: TorchCollectives, output: Tensor, input: Tensor) -> None:  # noqa: A002
        if os.environ["RANK"] == "2" and (of_step(folder, 2) / INDEX).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, output, input)

    run = Run(folder)
    with monkeypatch.context() as patched:
        patched.setattr(TorchCollectives, "reduce_scatter", reduce_scatter)
        with in_vain() as waited, pytest.raises(RankFailed, match="rank 2 was killed by SIGKILL"):
            run.train(scenario(**OPTIONS))
    assert waited == []  # it is named when it dies, whatever the others wait for
    return run


def test_a_run_whose_rank_is_killed_in_a_collective_goes_on_from_its_last_checkpoint(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reference on plain gloo goes on from there too: they are compared value by value."""
    dead = killed(tmp_path / "dead", monkeypatch)
    assert len(dead.pids) == 4
    for pid in dead.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert newest(dead.folder) == of_step(dead.folder, 2)

    made = scenario(**OPTIONS, resume=str(dead.folder))
    made.check()
    folder = folders.of_scenario(tmp_path / "resumed", made, overwrite=False)
    with Progress(Console(quiet=True), "", made.steps) as progress:
        reference = session.reference_of(made, folder, progress)
        found = session.simulate(made, folder, reference, progress)
    assert found.verdict == "clean"
    assert of(reference, 4) == {at: loss for at, loss in whole.losses.items() if at[0] > 2}
    assert reference.final == whole.final
    assert newest(folder) == of_step(folder, 4)
    assert not (folder / "reference" / FOLDER).exists()


def test_fewer_ranks_under_another_strategy_go_on_with_the_same_loss(whole: Run, tmp_path: Path) -> None:
    """That of step 4 is computed with what step 3 saved: bit for bit the same, for each of its micro-batches."""
    made = scenario(
        **{**OPTIONS, "ranks": 2, "nodes": 1, "accumulation": 2, "sharding": "NGG", "checkpoint_every": 0},
        resume=str(of_step(whole.folder, 3)),
    )
    made.check()
    run = Run(tmp_path / "fewer")
    run.train(made)
    assert run.losses == {at: loss for at, loss in whole.losses.items() if at[0] == 4}
    assert len(run.losses) == 4
    assert not (run.folder / FOLDER).exists()


def test_the_last_two_checkpoints_are_kept(whole: Run) -> None:
    assert sorted(path.name for path in (whole.folder / FOLDER).iterdir()) == ["step-3", "step-4"]
    assert newest(whole.folder) == of_step(whole.folder, 4)


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)])
def test_a_step_has_the_same_micro_batches_for_any_number_of_ranks(ranks: int, accumulation: int) -> None:
    """The data are dealt in turns: of a micro-batch to each rank. As many turns as make up a step take the same."""
    questions = load(SAMPLE)

    def steps(world: int, turns: int) -> list[list[Any]]:
        dealt = [
            batches(questions, sequence=16, micro_batch=2, rank=rank, world=world, seed=0) for rank in range(world)
        ]
        return [[next(rank)["input_ids"].tolist() for _ in range(turns) for rank in dealt] for _ in range(5)]

    assert steps(ranks, accumulation) == steps(12, 1)


Change = Callable[[Run], dict[str, Any]]
REFUSALS: dict[str, tuple[Change, str]] = {
    "no such folder": (lambda run: {"resume": str(run.folder / "nowhere")}, "nowhere: the folder does not exist"),
    "no checkpoint": (
        lambda run: {"resume": str(run.folder / "trace")},
        "give a checkpoint's folder, or that of a run with --checkpoint-every",
    ),
    "no steps to do": (lambda run: {}, "step-4 has done 4 steps already: give more --steps than that"),
    "another batch": (
        lambda run: {"steps": 9, "accumulation": 2},
        "has 4 sequences, and here 8: choose ranks, --micro-batch and --accumulation whose product is 4",
    ),
    "another model": (
        lambda run: {"steps": 9, "size": "odd"},
        "is of another model: its parameter model.embed_tokens.weight has the shape 259 x ",
    ),
    "another precision": (lambda run: {"steps": 9, "precision": "fp32"}, "is bfloat16, and the model's float32"),
}


@pytest.mark.parametrize("change", REFUSALS)
def test_what_cannot_go_on_is_refused_before_a_rank_starts(change: str, whole: Run) -> None:
    options, sentence = REFUSALS[change]
    made = scenario(**{**OPTIONS, "resume": str(whole.folder), **options(whole)})
    with pytest.raises(ScenarioError) as error:
        made.check()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("option", "value"), [("checkpoint_every", 2), ("resume", "runs/mine")])
def test_stock_deepspeed_has_no_checkpoints_here(option: str, value: Any) -> None:
    with pytest.raises(ScenarioError, match=f"--{option.replace('_', '-')} is of our own engine: name a strategy too"):
        scenario(**{option: value})


def test_a_run_is_not_replaced_by_the_one_that_goes_on_from_it(tmp_path: Path) -> None:
    """Its folder would be emptied before its checkpoint is read."""
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    with pytest.raises(WrongUse, match="is the run that is to be resumed: choose another --name"):
        folders.of_scenario(tmp_path / "a", scenario(sharding="IIG", resume=str(tmp_path / "a")), overwrite=True)
    assert (tmp_path / "a" / "checkpoints").is_dir()
