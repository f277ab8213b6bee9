"""Used wrongly, the watch says so at once, in a sentence; when it fails itself, training does not notice."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as torch_optimizer

from streamrace.detectors import Cause, Finding, Kind, NanWatch, WatchError, WatchFailed
from streamrace.detectors.live import incident, ops
from streamrace.detectors.live.actions import BadValueWarning
from streamrace.device.ranks.cluster import Rank, run_ranks
from tests.live.training import Model, hooks_left

STEPS = 3


def batch(step: int) -> dict[str, Tensor]:
    one = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 40, (2, 9), generator=one)
    return {"input_ids": ids[:, :-1], "features": torch.randn(2, 4, generator=one), "labels": ids[:, 1:].clone()}


class Training:
    """A plain loop over a small model, always the same."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, number: int, **change: Tensor) -> None:
        self.model(**{**batch(number), **change})["loss"].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int = STEPS) -> dict[str, Tensor]:
        for number in range(1, steps + 1):
            self.step(number)
        return self.weights()

    def weights(self) -> dict[str, Tensor]:
        return {name: one.detach().clone() for name, one in self.model.named_parameters()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def global_hooks() -> tuple[Any, ...]:
    return (
        dict(torch_optimizer._global_optimizer_pre_hooks),
        dict(torch_optimizer._global_optimizer_post_hooks),
        GradScaler.update,
        GradScaler.scale,
        GradScaler.step,
    )


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Whatever a story does to its watch, torch is afterwards as it was before."""
    before = global_hooks()
    yield
    assert global_hooks() == before


def bare() -> dict[str, Tensor]:
    return Training().run()


# -- used wrongly ------------------------------------------------------------------------------------------


class Empty(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda model: NanWatch("model"), "needs a torch module or a DeepSpeed engine, not a str"),
        (lambda model: NanWatch(nn.Linear), "needs a torch module or a DeepSpeed engine, not a type"),
        (lambda model: NanWatch(Empty()), "the model has no parameters: there is nothing to watch"),
        (lambda model: NanWatch(model, watch=["loss", "weights"]), "unknown watch 'weights': choose from inputs"),
        (lambda model: NanWatch(model, watch="weights"), "unknown watch 'weights': choose from inputs"),
        (lambda model: NanWatch(model, bound={"logits": 1.0}), "unknown bound 'logits': choose from inputs"),
        (lambda model: NanWatch(model, bound=0.0), "give one above 0"),
        (lambda model: NanWatch(model, bound=-1.0), "give one above 0"),
        (lambda model: NanWatch(model, bound={"loss": float("nan")}), "give one above 0"),
        (lambda model: NanWatch(model, bound="large"), "give one above 0"),
        (lambda model: NanWatch(model, bound={"loss": None}), "give one above 0"),
        (lambda model: NanWatch(model, on_finding="explode"), "unknown action 'explode': choose from warn, raise"),
        (lambda model: NanWatch(model, on_finding=["warn", "explode"]), "or give a function"),
        (lambda model: NanWatch(model, on_finding=3), "unknown action '3'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_use_is_one_sentence_at_once(wrong: Callable[[nn.Module], object], sentence: str) -> None:
    model = Model()
    with pytest.raises(WatchError) as caught:
        wrong(model)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hooks_left(model) == 0


def test_an_unknown_phase_is_refused_and_the_watch_goes_on() -> None:
    with NanWatch(Model()) as watch:
        with pytest.raises(WatchError, match="unknown phase 'eval': choose from forward, backward, step"):
            watch.phase("eval")
        assert not watch.closed


def test_incidents_need_a_folder_that_can_be_written_before_training_begins(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    model = Model()
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(WatchError, match="choose another folder"):
            NanWatch(model, on_finding="save", folder=folder)
    assert hooks_left(model) == 0


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    training = Training()
    with NanWatch(training.model, record=tmp_path):
        training.run(1)
    before = (tmp_path / "rank-0.jsonl").read_bytes()
    with pytest.raises(WatchError, match="already holds a recording of rank 0; give another folder"):
        NanWatch(training.model, record=tmp_path)
    assert (tmp_path / "rank-0.jsonl").read_bytes() == before
    assert hooks_left(training.model) == 0


class Said(NamedTuple):
    facts: dict[str, Any]


def _in_deepspeed(me: Rank) -> None:
    """What the watch says of a model that DeepSpeed is to take, or has taken, without telling the watch."""
    from streamrace.frameworks.deepspeed import adapter

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_SIZE="1")
    adapter.start(simulated=False)
    store = torch.distributed.FileStore(str(me.store), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))

    def initialize(stage: int, model: nn.Module) -> None:
        config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}}
        config["zero_allow_untested_optimizer"] = True
        adapter.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)

    early, sharded = Model(), Model()
    said: dict[str, Any] = {"early": "", "sharded": ""}
    NanWatch(early)
    try:
        initialize(1, early)
    except WatchError as error:
        said["early"] = str(error)
    initialize(3, sharded)
    before = hooks_left(sharded)
    try:
        NanWatch(sharded, record=me.store.parent / "record")
    except WatchError as error:
        said["sharded"] = str(error)
    said["left"] = hooks_left(sharded) - before
    said["recorded"] = (me.store.parent / "record" / "rank-0.jsonl").exists()
    me.report(Said(said))


def test_a_model_of_deepspeed_is_watched_through_its_engine(tmp_path: Path) -> None:
    sent: list[Said] = []
    run_ranks(1, _in_deepspeed, folder=tmp_path, kinds=(Said,), receive=lambda rank, message: sent.append(message))
    ((said,),) = sent
    assert "watched already, and deepspeed.initialize comes only now" in said["early"]
    assert "watch the engine that it returns" in said["early"]
    assert "watch what deepspeed.initialize returns" in said["sharded"]
    assert said["left"] == 0
    assert not said["recorded"], "the next try, with the engine, must find the folder free"


# -- the watch fails ---------------------------------------------------------------------------------------


class Failing:
    """Makes one measurement fail: the ``at``-th, counted over all."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.calls, self.at = 0, at
        for name in ("probe_now", "checksum_now"):
            patch.setattr(ops, name, self._of(getattr(ops, name)))

    def _of(self, measure: Callable[..., None]) -> Callable[..., None]:
        def called(*args: Any, **kwargs: Any) -> None:
            self.calls += 1
            if self.calls == self.at:
                raise RuntimeError("planted")
            measure(*args, **kwargs)

        return called


def measured(patch: pytest.MonkeyPatch, steps: int) -> int:
    with patch.context() as inner:
        counted, training = Failing(inner, -1), Training()
        watch = NanWatch(training.model, checksums=True)
        training.run(steps)
        calls = counted.calls
        watch.close()
    return calls


@pytest.mark.parametrize("watches", [1, 2], ids=["alone", "beside another watch"])
def test_a_watch_that_fails_anywhere_in_a_step_steps_aside_and_training_goes_on(
    watches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = bare()
    first, last = measured(monkeypatch, 1), measured(monkeypatch, 2)
    assert last - first > 50
    places = {*range(first + 1, first + 4), *range(first + 4, last, 11), *range(last - 60, last + 1, 5)}
    for at in sorted(places):
        training, other = Training(), nn.Linear(2, 2)
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            Failing(patch, at)
            watch = NanWatch(training.model, checksums=True)
            beside = [NanWatch(other) for _ in range(watches - 1)]
            assert same(training.run(), wanted), at
            assert watch.closed
            assert hooks_left(training.model) == 0
            assert not any(one.closed for one in beside)
            for one in (watch, *beside):
                assert one.close() is None
        (said,) = [str(one.message) for one in warned if one.category is WatchFailed]
        assert said.endswith("training continues without it: RuntimeError: planted")


def test_a_watch_that_fails_when_it_is_closed_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    watch = NanWatch(training.model)
    training.run()
    training.model(**batch(9))
    monkeypatch.setattr(watch._judge, "step", lambda step: 1 / 0)
    with pytest.warns(WatchFailed, match="ZeroDivisionError"):
        assert watch.close() is None
    assert hooks_left(training.model) == 0


@pytest.mark.parametrize("where", ["at the step", "at the end"])
def test_what_the_users_function_raises_reaches_the_user(where: str) -> None:
    def react(finding: Finding) -> None:
        raise KeyError(str(finding.cause))

    training = Training()
    watch = NanWatch(training.model, on_finding=react)
    training.run(1)
    bad = {**batch(2), "features": torch.full((2, 4), torch.nan)}
    loss = training.model(**bad)["loss"]
    if where == "at the step":
        loss.backward()
    with pytest.raises(KeyError, match="data") as caught:
        training.optimizer.step() if where == "at the step" else watch.close()
    assert caught.value.__cause__ is None
    assert watch.closed
    assert watch.finding is not None
    assert hooks_left(training.model) == 0


def test_a_full_disk_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    def trained(**options: Any) -> dict[str, Tensor]:
        training = Training()
        watch = NanWatch(training.model, bound={"loss": 1e-3}, **options)
        weights = training.run()
        assert watch.finding is not None
        return weights

    monkeypatch.setattr(incident, "write", full)
    with pytest.warns(BadValueWarning, match="Not saved: .*No space left on device"):
        assert same(trained(on_finding="save", folder=tmp_path), bare())


def test_the_programs_own_exception_comes_through(tmp_path: Path) -> None:
    training = Training()
    with pytest.raises(ZeroDivisionError), NanWatch(training.model, record=tmp_path) as watch:  # noqa: PT012
        training.run(1)
        raise ZeroDivisionError
    assert watch.closed
    assert hooks_left(training.model) == 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del watch
        gc.collect()
    assert not [one for one in warned if one.category is ResourceWarning], "the recording is closed with the watch"


# -- unusual, and right ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["compiled first", "watched first"])
def test_a_compiled_model_trains_as_it_did(first: str) -> None:
    def trained(*, watched: bool) -> dict[str, Tensor]:
        training = Training()
        compiled: list[Any] = []
        if first == "compiled first":
            compiled.append(torch.compile(training.model, backend="eager"))
        watch = NanWatch(compiled[0] if compiled else training.model) if watched else None
        model = compiled[0] if compiled else torch.compile(training.model, backend="eager")
        for number in (1, 2):
            model(**batch(number))["loss"].backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
        if watch is not None:
            assert watch.steps == 2
            assert watch.close() is None
            assert hooks_left(training.model) == 0
        torch.compiler.reset()
        return training.weights()

    with warnings.catch_warnings():
        warnings.simplefilter("error", WatchFailed)
        assert same(trained(watched=True), trained(watched=False))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(12, 3, sparse=True)
        self.last = nn.Linear(3, 1)

    def forward(self, ids: Tensor, factor: float = 1.0) -> Tensor:
        return (self.last(self.rows(ids)) * factor).mean()


@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
def test_a_sparse_gradient_is_looked_at(recorded: bool, tmp_path: Path) -> None:
    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Finding] = []
    watch = NanWatch(model, checksums=True, on_finding=seen.append, record=tmp_path if recorded else None)
    with warnings.catch_warnings(), watch:
        warnings.simplefilter("error", WatchFailed)
        for factor in (1.0, 1.0):
            model(torch.tensor([1, 5, 5]), factor).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not seen
        loss = model(torch.tensor([1, 5, 5]))
        model.rows.weight.register_hook(lambda gradient: gradient * torch.inf)
        loss.backward()
        optimizer.step()
    (found,) = seen
    assert (found.cause, found.parameter, found.step) == (Cause.GRADIENT, "rows.weight", 3)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 4)
        self.head = nn.Linear(4, 12, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.tokens(ids)), ids)


def test_a_shared_parameter_has_the_name_of_its_first_module() -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen: list[Finding] = []
    with NanWatch(model, checksums=True, on_finding=seen.append):
        for number in (1, 2, 3):
            if number == 3:
                model.head.weight.data[7, 1] += 1
            model(torch.tensor([1, 5])).backward()
            optimizer.step()
            optimizer.zero_grad()
    (found,) = seen
    assert (found.cause, found.kind, found.parameter) == (Cause.CORRUPTION, Kind.PARAMETER, "tokens.weight")
    assert found.step == 3


def test_two_models_are_watched_at_once_and_one_finding_ends_one_watch() -> None:
    ours, theirs = Training(), Training()
    seen: list[Finding] = []
    with NanWatch(ours.model, on_finding=seen.append) as first, NanWatch(theirs.model, on_finding=seen.append) as last:
        for number in (1, 2):
            ours.step(number)
            theirs.step(number)
        assert (first.steps, last.steps) == (2, 2)
        ours.step(3, features=torch.full((2, 4), torch.nan))
        assert first.closed
        assert not last.closed
        theirs.step(3, labels=torch.full((2, 8), -100))
        assert last.closed
    assert [(one.cause, one.step) for one in seen] == [(Cause.DATA, 3), (Cause.DATA, 3)]
    assert [one.kind for one in seen] == [Kind.INPUT, Kind.LOSS]


def test_a_loss_scale_belongs_to_the_model_whose_optimizer_it_steps() -> None:
    """A discriminator with a scale beside a generator without, for example."""
    scaled, plain = Training(), Training()
    scaler = GradScaler("cpu", init_scale=2.0)
    with NanWatch(scaled.model) as first, NanWatch(plain.model) as last:
        for number in (1, 2, 3):
            for _ in range(2):
                scaler.scale(scaled.model(**batch(number))["loss"]).backward()
                scaler.step(scaled.optimizer)
                scaler.update()
            plain.step(number)
            assert (first.steps, last.steps) == (2 * number, number)
