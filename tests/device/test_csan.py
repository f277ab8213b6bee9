"""torch's own sanitizer on the simulated device: it can be switched on, and its verdicts beside ours are explained."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from corpus import BEGIN, CORPUS, PAGE, Program, lines_of, whole_page
from judged import story
from samples import apart
from torch._utils import CallbackRegistry

ROOT = Path(__file__).resolve().parents[2]


def ours(name: str) -> bool:
    with story() as told:
        named(name).run()
    return bool(told.races)


def csan(name: str) -> bool:
    """Each program has a sanitizer of its own: what one knows of memory and streams is not the next one's affair."""
    from torch.cuda import _gpu_trace, _sanitizer

    for registry in vars(_gpu_trace).values():
        if isinstance(registry, CallbackRegistry):
            registry.callback_list.clear()
    with contextlib.redirect_stderr(io.StringIO()), _sanitizer.CUDASanitizerDispatchMode():
        try:
            named(name).run()
        except _sanitizer.CUDASanitizerErrors:
            return True
    return False


def alone(judge: Callable[[str], bool]) -> Callable[[str], bool | str]:
    """The same, with an error told, and nothing left on the device for the next program."""

    def work(name: str) -> bool | str:
        try:
            return judge(name)
        except Exception as error:
            return repr(error)
        finally:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    return work


def named(name: str) -> Program:
    return next(program for program in CORPUS if program.name == name)


def test_of_each_program_both_verdicts_are_those_of_the_table() -> None:
    names = [program.name for program in CORPUS]
    for judge, expected in ((ours, [one.ours for one in CORPUS]), (csan, [one.csan for one in CORPUS])):
        assert dict(apart(alone(judge), names)) == dict(zip(names, expected, strict=True)), judge.__name__


@pytest.mark.host
def test_the_corpus_is_what_its_page_says() -> None:
    assert BEGIN in PAGE.read_text(encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == whole_page(), "run: python tests/device/corpus.py"
    assert 20 <= len(CORPUS) == len({program.name for program in CORPUS})
    assert max(lines_of(program) for program in CORPUS) <= 15


def test_the_callbacks_of_a_cuda_build_are_all_called() -> None:
    """In the order of the program: torch's own tests of them (test_cuda_trace.py) expect the same."""
    from torch.cuda import _gpu_trace as gpu_trace

    seen: list[str] = []
    torch._C._activate_gpu_trace()
    for what in (
        "event_creation", "event_deletion", "event_record", "event_wait", "event_synchronization", "stream_creation",
        "stream_synchronization", "device_synchronization", "memory_allocation", "memory_deallocation",
    ):  # fmt: skip
        getattr(gpu_trace, f"register_callback_for_{what}")(lambda *_, what=what: seen.append(what))
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    assert seen == ["stream_creation"] * 64  # both of torch's pools, as they are made at once
    seen.clear()
    event.record()
    event.wait(side)
    event.synchronize()
    side.synchronize()
    torch.cuda.synchronize()
    x = torch.empty(8, device="cuda")
    x.untyped_storage().resize_(0)
    del x, event
    assert seen == [
        "event_creation", "event_record", "event_wait", "event_synchronization", "stream_synchronization",
        "device_synchronization", "memory_allocation", "memory_deallocation", "event_deletion",
    ]  # fmt: skip


@pytest.mark.host
def test_a_script_is_sanitized_when_the_variable_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "x = torch.ones(4, device='cuda')\n"
        "print('issued', flush=True)\n"
        "with torch.cuda.stream(torch.cuda.Stream()):\n"
        "    x.add_(1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_CUDA_SANITIZER": "1"}
    command = [sys.executable, "-m", "streamrace.device", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "issued\n")
    assert "CSAN detected a possible data race" in done.stderr
    assert 'train.py", line 5, in <module>' in done.stderr
