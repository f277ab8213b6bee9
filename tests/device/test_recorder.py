"""The recorder of a real GPU says what the simulated GPU's own trace says, of the same run: pair for pair of lines.

The two share the detectors and the writing of a trace, and nothing of what is seen: one simulates, the other listens to
torch. ``tests/real_build`` has the recorder on torch's CUDA build.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus import CORPUS
from hypothesis import given
from hypothesis import strategies as st
from judged import Story, story
from recorded_beside import Pair, pairs, recorded, recorded_into, unpacked
from samples import apart
from test_fsdp_waits import WAITS, without
from test_random_programs import run as run_steps
from test_random_programs import step
from test_sharding import half
from torch.utils.checkpoint import checkpoint
from world import races, together

from streamrace.detectors import find_races
from streamrace.detectors.confidence.unrecorded import UnrecordedWork
from streamrace.device.packages import names
from streamrace.recorder import RecorderError
from streamrace.scenarios.catalogue.entry import entries
from streamrace.scenarios.textbook import TEXTBOOK
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Alloc, Free, HostWait, Launch, Record, RecordStream, Reuse, StreamName, Wait
from tests.examples import examples
from tests.warm import shell

ROOT = Path(__file__).resolve().parents[2]


def both(program: Any) -> tuple[Story, Story]:
    """Run a program once; gives the device's own records and the recorder's."""
    theirs = Story()
    with story() as own, recorded(unpacked(theirs.records)):
        program()
    return own, theirs


def lines_of_both(program: Any) -> Any:
    try:
        own, theirs = both(program)
    except Exception as error:
        return repr(error)
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return pairs(own.races), pairs(theirs.races)


def differing(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in found.items() if isinstance(one, str) or one[0] != one[1]}


def test_the_races_of_the_corpus() -> None:
    programs = {program.name: program for program in CORPUS}
    found = dict(apart(lambda name: lines_of_both(programs[name].run), list(programs)))
    assert differing(found) == {}
    assert {name for name, (_, theirs) in found.items() if theirs} == {name for name in programs if programs[name].ours}


def test_the_races_of_the_textbook_and_of_its_cures() -> None:
    for name, entry in TEXTBOOK.items():
        racy, cured = (lines_of_both(lambda run=run: run(_Device())) for run in (entry.program, entry.fixed))
        assert differing({"racy": racy, "cured": cured}) == {}, name
        assert racy[1], name
        assert not cured[1], name


class _Device:
    """What a textbook program asks of a recorded device: here nothing is probed."""

    def probe(self, *_: Any, **__: Any) -> None:
        pass

    name_stream = probe


@examples(60)
@given(program=st.lists(step, min_size=1, max_size=25), left_out=st.sets(st.integers(0, 24)))
def test_the_races_of_random_programs(program: list[Any], left_out: set[int]) -> None:
    """Well-ordered programs over three streams, from which some waits are left out."""
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.device("cuda"):
        found = lines_of_both(lambda: run_steps(program, streams, left_out))
    assert differing({"random": found}) == {}


@pytest.mark.parametrize("wait", WAITS)
def test_the_races_of_fsdp2_without_one_of_its_waits(wait: str, tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        with recorded_into(tmp_path / "theirs", rank, world), without(WAITS[wait]):
            half(rank, world, device)

    together(2, program, tmp_path / "own")
    own, theirs = pairs(races(tmp_path / "own")), pairs(find_races(tmp_path / "theirs"))
    assert own
    assert own == theirs


def test_an_output_that_gets_its_memory_from_its_operator_is_written() -> None:
    def program() -> None:
        x, out, side = torch.ones(8, device="cuda"), torch.empty(0, device="cuda"), torch.cuda.Stream()
        torch.mul(x, 2, out=out)
        with torch.cuda.stream(side):
            out.sum()

    own, theirs = both(program)
    assert pairs(own.races) == pairs(theirs.races) != set()


def _same_as_of_a_script(tmp_path: Path, *words: str, options: Sequence[str] = ()) -> set[Pair]:
    """Run a script with both recorders; gives the pairs, which are the same unless something is said to be unseen."""
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    program = [str(ROOT / "tests/device/recorded_beside.py"), str(theirs), *words]
    command = [sys.executable, "-m", "streamrace.device", "--ranks", "1", *options, "--trace", str(own), *program]
    environment = {**shell(), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    found, unrecorded = pairs(find_races(theirs)), UnrecordedWork()
    unrecorded.feed(0, TraceReader(file_of(theirs, 0)).read())
    if unrecorded.findings():
        assert found <= pairs(find_races(own))
    else:
        assert found == pairs(find_races(own))
    return found


def _is_here(package: str) -> bool:
    return names.parse(package).is_(names.installed(package.partition("==")[0]))


SMALL = [
    one
    for one in entries()
    if (one.ranks, one.gpus, one.compile) == (1, 1, "eager") and all(map(_is_here, one.affected.packages))
]


@pytest.mark.host
@pytest.mark.wide
@pytest.mark.parametrize("name", [one.id for one in SMALL])
def test_the_races_of_a_known_bug(name: str, tmp_path: Path) -> None:
    entry = next(one for one in SMALL if one.id == name)
    _same_as_of_a_script(tmp_path, str(entry.path), *entry.affected.arguments)


HPZ_WAIT = "stream.synchronize@partition_parameters.py:1951"


@pytest.mark.host
@pytest.mark.parametrize("left_out", [[], ["--without", HPZ_WAIT]], ids=["stock", "without the synchronisation"])
def test_the_races_of_hpz(left_out: list[str], tmp_path: Path) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    program = [str(ROOT / "tests/device/recorded_beside.py"), str(theirs), str(ROOT / "examples/deepspeed_hpz.py")]
    command = [sys.executable, "-m", "streamrace.device", "--ranks", "4", *left_out, "--trace", str(own), *program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**shell(), "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    found = pairs(find_races(theirs))
    assert found == pairs(find_races(own))
    assert {first[0].rpartition("/")[2] for _, first, _ in found} == (
        {"partition_parameters.py"} if left_out else set()
    )


# -- the probe effect ------------------------------------------------------------------------------------------


def training() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).cuda()
    optimizer, side = torch.optim.AdamW(model.parameters()), torch.cuda.Stream()
    for _ in range(3):
        batch = torch.randn(8, 16).cuda()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = model(batch).square().mean()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def what_happened(told: Story) -> list[Any]:
    """All that a recorder could disturb: the order, the memory, its peak. No times, and no places of our own."""
    first = min((one.block for one in told.records if isinstance(one, Alloc)), default=0)
    made: list[Any] = []
    for one in told.records:
        if isinstance(one, Launch):
            made.append(("Launch", one.kernel, one.stream, [(a[0] - first, *a[1:]) for a in (*one.reads, *one.writes)]))
        elif isinstance(one, (Alloc, Free)):
            made.append((type(one).__name__, one.block - first))
        elif isinstance(one, Reuse) and one.former >= first:  # of memory that the run itself had
            made.append(("Reuse", one.block - first, one.former - first, one.lo, one.hi))
        elif isinstance(one, (Record, Wait, HostWait)):
            made.append((type(one).__name__, one.stream if isinstance(one, (Record, Wait)) else one.how))
    return made


def test_a_recording_changes_no_order_no_free_and_no_peak() -> None:
    def alone() -> Any:
        with story() as told:
            training()
        return what_happened(told), torch.cuda.max_memory_allocated()

    def beside() -> Any:
        own, _ = both(training)
        return what_happened(own), torch.cuda.max_memory_allocated()

    works = {"alone": alone, "beside": beside}
    runs = {name: dict(apart(lambda each: works[each](), [name]))[name] for name in works}  # a process for each
    assert runs["alone"] == runs["beside"]
    assert len(runs["alone"][0]) > 300


def test_the_counts_of_all_records_are_the_devices() -> None:
    own, theirs = both(training)
    counts = [Counter(type(one).__name__ for one in told.records) for told in (own, theirs)]
    for kind in (Alloc, Free, Reuse, Launch, Record, Wait, HostWait, RecordStream):
        assert counts[0][kind.__name__] == counts[1][kind.__name__] > 0, kind


# -- what ends other recorders -----------------------------------------------------------------------------------


def test_torchs_own_callbacks_end_a_program_that_frees_memory_while_an_exception_is_pending() -> None:
    """Fails once torch is cured: then docs/results/found.md says so."""
    from torch.cuda import _gpu_trace

    torch._C._activate_gpu_trace()
    _gpu_trace.register_callback_for_memory_deallocation(lambda address: None)
    with pytest.raises(SystemError):
        recomputed(torch.ones(8, device="cuda", requires_grad=True))


def recomputed(weight: torch.Tensor) -> None:
    loss = checkpoint(lambda value: torch.nn.functional.dropout(value * 2, 0.5), weight, use_reentrant=False)
    loss.sum().backward()


def test_memory_that_is_freed_while_an_exception_is_pending_ends_no_program() -> None:
    """torch's own callbacks, in Python, end it there with a SystemError: so does checkpoint stop a recomputation."""
    weight = torch.ones(8, device="cuda", requires_grad=True)

    own, theirs = both(lambda: recomputed(weight))
    assert weight.grad is not None
    assert pairs(own.races) == pairs(theirs.races)
    assert theirs.of(Free)


def test_two_recordings_follow_one_another_and_each_has_all_its_stacks() -> None:
    for _ in range(2):
        _, theirs = both(racy)
        assert pairs(theirs.races) != set()
        assert all(path.endswith("test_recorder.py") for _, (path, _), _ in pairs(theirs.races))


def racy() -> None:
    x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)


def test_a_second_recorder_at_the_same_time_is_refused() -> None:
    with recorded(lambda _: None), pytest.raises(RecorderError, match="recorded already"), recorded(lambda _: None):
        pass


def test_torchs_own_sanitizer_and_the_recorder_exclude_each_other() -> None:
    torch._C._activate_gpu_trace()
    with pytest.raises(RecorderError, match="TORCH_CUDA_SANITIZER"), recorded(lambda _: None):
        pass


def test_streams_are_named_in_the_order_in_which_they_are_used() -> None:
    def program() -> None:
        for _ in range(3):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.ones(2, device="cuda")

    _, theirs = both(program)
    names = [one.name for one in theirs.records if isinstance(one, StreamName)]
    assert names == ["default", "stream 1", "stream 2", "stream 3"]
