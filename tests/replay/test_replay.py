"""A recorded run, executed again in one process: the same bits under the recorded timing, others under another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from streamrace.device.device import Device
from streamrace.replay.deviations import OperationDelay, Stretch
from streamrace.replay.device_work import checksum
from streamrace.replay.faults import ReplayError
from streamrace.replay.names import UnknownOperation
from streamrace.replay.record import plain_timing, record
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer
from streamrace.scenarios import program
from streamrace.scenarios.messages import Report, StepDone, TrainingEnded
from streamrace.scenarios.scenario import scenario


def looked(value: torch.Tensor) -> None:
    """What a look at a value is good for here: that it was taken."""


def live(folder: Path, **options: Any) -> tuple[Recording, dict[int, list[dict[str, Any]]]]:
    """Run a scenario on real ranks and record it; gives also what the ranks said of their values meanwhile."""
    program.preload()
    said: dict[int, list[Report]] = {}
    chosen = scenario(**{"size": "tiny", "steps": 3, "accumulation": 1, "sequence": 32, **options})
    program.run(
        chosen,
        simulated=True,
        folder=folder,
        receive=lambda rank, report: said.setdefault(rank, []).append(report),
        parts=1,
        record=True,
    )
    return Recording.load(folder / "trace"), said


@pytest.mark.parametrize(
    ("model", "hpz"),
    [
        ("llama", 2),
        pytest.param("falcon", 1, marks=pytest.mark.wide),
        pytest.param("llama", 1, marks=pytest.mark.wide),
        pytest.param("falcon", 2, marks=pytest.mark.wide),
    ],
)
def test_the_recorded_timing_gives_the_bits_of_the_live_run(model: str, hpz: int, tmp_path: Path) -> None:
    recording, said = live(tmp_path, model=model, hpz=hpz)
    replayer = Replayer(recording)
    outcome = replayer.verify()
    assert outcome.departure is None
    assert {look.kind for look in replayer.looks} >= {"loss", "parameter", "final", "read"}
    for rank in range(4):
        steps = [report for report in said[rank] if isinstance(report, StepDone)]
        looks = [(place, look) for place, look in enumerate(replayer.looks) if look.rank == rank]
        losses = [value for message in steps for _, _, value in message.losses]
        assert [outcome.losses[place] for place, look in looks if look.kind == "loss"] == losses
        # The use of each parameter: step, micro-batch, phase, name, checksum.
        uses = sorted(tuple(row[:4]) + tuple(row[4]) for message in steps for row in message.parameters)
        assert uses == sorted(
            (*look[2:5], look.name, outcome.checksums[place]) for place, look in looks if look.kind == "parameter"
        )
        final = {look.name: outcome.checksums[place] for place, look in looks if look.kind == "final"}
        assert [report.final for report in said[rank] if isinstance(report, TrainingEnded)] == [final]


def test_a_run_that_goes_wrong_is_replayed_wrong_in_the_same_bits(tmp_path: Path) -> None:
    recording, _ = live(tmp_path, fix="none", steps=2, accumulation=2)
    replayer = Replayer(recording)
    as_recorded = replayer.verify()
    in_order = replayer.run_order(replayer.graph.issue_order())
    assert as_recorded.checksums != in_order.checksums


def test_a_replay_leaves_nothing_behind_for_the_next(tmp_path: Path) -> None:
    recording, _ = live(tmp_path, fix="none", steps=2, hardware="a100-12.5gbps")
    replayer = Replayer(recording)
    before = replayer.run()
    copies = [
        recording.names.name(rank, op)
        for rank, op in replayer.graph.ends
        if (name := recording.names.name(rank, op)).kernel == "copy_" and name.step == 2 and name.parameter
    ]
    late = replayer.run(recording.deviated([OperationDelay(one, "long", 1_000_000_000) for one in copies]))
    assert late.checksums != before.checksums
    assert replayer.run().checksums == before.checksums


# -- small programs -------------------------------------------------------------------------------------------


def producer_and_consumer(device: Device) -> None:
    """What the side stream reads is written on the current one, and nothing orders the two."""
    side = torch.cuda.Stream()
    device.name_stream(side, "side")
    values = torch.zeros(8, device="cuda")
    values.copy_(torch.arange(8.0, device="cuda"))
    with torch.cuda.stream(side):
        device.probe("loss", "", (values * 2).sum(), looked)


def loss_of(replayer: Replayer, *deviations: Any) -> float:
    (loss,) = replayer.run(replayer.recording.deviated(deviations)).losses.values()
    return loss


def test_a_late_producer_is_read_too_early() -> None:
    recording = record(producer_and_consumer)
    replayer = Replayer(recording)
    assert loss_of(replayer) == 56.0
    copy = next(name for name in recording.names.of_rank(0) if name.kernel == "copy_")
    assert loss_of(replayer, OperationDelay(copy, "long", 1_000_000)) == 0.0
    assert loss_of(replayer, Stretch("stream:compute", 1000)) != 56.0
    assert (
        loss_of(replayer, Stretch("host", 1000), Stretch("stream:compute", 10)) == 56.0
    )  # nobody is as slow as the host


def test_an_operation_that_is_gone_is_missed_by_name() -> None:
    recording = record(producer_and_consumer)
    copy = next(name for name in recording.names.of_rank(0) if name.kernel == "copy_")
    with pytest.raises(UnknownOperation, match="mul_"):
        recording.deviated([OperationDelay(copy._replace(kernel="mul_"), "long", 1000)])


def test_random_numbers_are_those_of_the_moment_of_issue() -> None:
    def draws(device: Device) -> None:
        torch.manual_seed(3)
        drawn = torch.empty(4, device="cuda").uniform_(generator=torch.Generator("cuda"))
        device.probe("loss", "", torch.rand(100, device="cuda").sum() + drawn.sum(), looked)

    recording = record(draws)
    torch.manual_seed(4)
    state = torch.get_rng_state()
    Replayer(recording).verify()
    assert torch.equal(torch.get_rng_state(), state)


def test_many_kinds_of_work_come_out_as_they_were() -> None:
    """Lists, several outputs, indices, masks, complex numbers, bytes, empty tensors, overlapping views, "out"."""

    def work(device: Device) -> None:
        values = torch.arange(24.0, device="cuda").reshape(4, 6)
        parts = torch.split(values.clone(), [1, 3])
        top, where = torch.topk(values, 2)
        values[1, ::2] = values[2, ::2] * 2
        values.index_add_(0, torch.tensor([0, 2], device="cuda"), top[:2].repeat(1, 3))
        chosen = values[values > 7]
        turned = torch.fft.rfft(values.flatten())
        torch._foreach_add_([values, turned.real.clone()[:3]], 1.0)
        wide = torch.nn.functional.pad(values, (1, 1))
        torch.add(wide, 1, out=wide)
        half = wide.to(torch.bfloat16).transpose(0, 1)
        empty = torch.empty(0, 3, device="cuda").sum(0)
        flags = (values > 3).to(torch.uint8).cumsum(0)
        mean, _ = torch.var_mean(values, dim=0), torch.linalg.qr(values)
        for name, value in {
            "parts": parts[1], "top": top, "where": where, "chosen": chosen, "turned": turned.conj(), "half": half,
            "empty": empty, "flags": flags, "mean": mean[0], "softmax": torch.softmax(values, 1),
        }.items():  # fmt: skip
            device.probe("parameter", name, value, looked)

    assert Replayer(record(work)).verify().departure is None


def test_what_the_host_reads_is_an_order_in_every_timing() -> None:
    def reads(device: Device) -> None:
        side = torch.cuda.Stream()
        values = torch.zeros(8, device="cuda")
        values.copy_(torch.arange(8.0, device="cuda"))
        assert values.sum().item() == 28.0
        values.record_stream(side)
        with torch.cuda.stream(side):
            device.probe("loss", "", (values * 2).sum(), looked)

    recording = record(reads)
    replayer = Replayer(recording)
    for name in recording.names.of_rank(0):
        assert loss_of(replayer, OperationDelay(name, "long", 1 << 30)) == 56.0


def test_a_query_that_answered_true_is_an_order_and_one_that_answered_false_is_none() -> None:
    def asks(answer: bool) -> Callable[[Device], None]:
        def program(device: Device) -> None:
            side = torch.cuda.Stream()
            values = torch.zeros(8, device="cuda")
            values.copy_(torch.arange(8.0, device="cuda"))
            event = torch.cuda.Event()
            event.record()
            if answer:
                for _ in range(20):
                    torch.ones(1, device="cuda")  # the host is busy meanwhile
            assert event.query() is answer
            with torch.cuda.stream(side):
                device.probe("loss", "", (values * 2).sum(), looked)

        return program

    slow = replace(plain_timing(), slow={"stream:compute": 8.0})
    for answer, wrong in ((True, False), (False, True)):
        recording = record(asks(answer), plain_timing() if answer else slow)
        copy = next(name for name in recording.names.of_rank(0) if name.kernel == "copy_")
        late = loss_of(Replayer(recording), OperationDelay(copy, "long", 1_000_000_000))
        assert (late != 56.0) is wrong


def test_a_host_read_that_differs_is_said() -> None:
    def decides(device: Device) -> None:
        side = torch.cuda.Stream()
        flag = torch.zeros(1, device="cuda")
        flag.copy_(torch.ones(1, device="cuda"))
        with torch.cuda.stream(side):
            if (flag * 1).item() == 1.0:
                flag.mul_(2)
            device.probe("loss", "", flag.sum(), looked)

    recording = record(decides)
    copy = next(name for name in recording.names.of_rank(0) if name.kernel == "copy_")
    departure = Replayer(recording).run(recording.deviated([OperationDelay(copy, "long", 1_000_000)])).departure
    assert departure is not None
    assert (departure.recorded, departure.value) == (checksum([1.0]), checksum([0.0]))
    assert departure.operation.kernel == "_local_scalar_dense"


# -- what cannot be replayed ------------------------------------------------------------------------------------


def test_a_trace_without_calls_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="no recording"):
        Recording.load(tmp_path)
    program.preload()
    program.run(
        scenario(size="tiny", steps=1, accumulation=1, sequence=32, ranks=2, nodes=1),
        simulated=True,
        folder=tmp_path,
    )
    with pytest.raises(ReplayError, match="says when work ran, not what it was"):
        Recording.load(tmp_path / "trace")
