"""Measures the NaN watch's cost in a training step, against the same program without it, and against other tools.

Rows ``watch`` (plain, on the CPU, and on a CUDA device if available) and ``watch-zero3`` (stock DeepSpeed on the CPU).
Each is measured in a process of its own (``python -m benchmarks.watch <row>``), because the other rows want one thread
and the kernels that every processor has, and these want all threads and the best kernels. All variants train the same
model there, in turn: a round is one step of each, the order rotates from round to round, and a figure is the median
over the rounds of a step against the bare step of the same round, in processor time, with wall time in the note. A hook
is put on before its step's clock starts, and taken off after the clock has stopped.

The noise is measured as well: a second bare step of each round is among the variants, and each median has its error.
The processor's own counter of instructions is missing in most containers, and counting without it (valgrind) takes
longer than a benchmark can wait. The time inside the watch's own hooks is reported too: it is measured within one step,
needs no other step to compare with, and leaves out only torch's overhead of calling a hook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.figures import Figure
from benchmarks.watch_costs import Timed, Times, costs, rounds
from streamrace.device import processor

Say = Callable[[str], None]

VOCABULARY = 16_384
SHAPE: dict[str, Any] = {  # a Llama of 111 M parameters: as wide as small models that people train
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 2816,
    "vocab_size": VOCABULARY,
}
BATCH, SEQUENCE = 4, 1024  # as much as a small GPU holds of such a model
ROUNDS, ROUNDS_ON_CUDA = 8, 40
WORLD, RANK_BATCH = 2, 2
DEFAULT_LIMIT, SUMS_LIMIT, CUDA_LIMIT = 2.0, 5.0, 1.0  # % of a step
COMPARED, FEW_ROUNDS = ("anomaly", "debug"), 3  # alternatives to the watch
# A step's memory comes from the system each time anew, at 5 to 10 % of the processor time and never the same twice; and
# idle threads spin. Both would be counted as work, so the allocator keeps memory, and waiting threads sleep.
_STEADY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "OMP_WAIT_POLICY": "PASSIVE",
}
_USUAL = "watch-usual"  # the same on the CPU, without _STEADY: no limit, as the figure depends on the machine


def measure(say: Say) -> list[Figure]:
    """Measure the plain training. Raises RuntimeError when the measuring process fails."""
    return [Figure(**one) for row in ("watch", _USUAL) for one in _in_a_process(row, say)]


def measure_zero3(say: Say) -> list[Figure]:
    """Measure ZeRO-3. Raises RuntimeError when the measuring process fails."""
    return [Figure(**one) for one in _in_a_process("watch-zero3", say)]


def _in_a_process(row: str, say: Say) -> list[dict[str, Any]]:
    """Return the figures that ``python -m benchmarks.watch <row>`` measures."""
    env = {name: value for name, value in os.environ.items() if name not in processor.KERNELS}
    if row != _USUAL:
        env |= _STEADY
    command = [sys.executable, "-m", "benchmarks.watch", row]
    figures: list[dict[str, Any]] = []
    said: list[str] = []
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            if not line.startswith('{"bench": '):  # DeepSpeed and torch print, too
                said.append(line)
                continue
            heard = json.loads(line)["bench"]
            if isinstance(heard, str):
                say(f"{row}: {heard}")
            else:
                figures = heard
    if process.returncode:
        raise RuntimeError(f"'{' '.join(command[1:])}' ended with {process.returncode}:\n{''.join(said)}")
    return figures


def _tell(what: str | list[dict[str, Any]]) -> None:
    print(json.dumps({"bench": what}), flush=True)


# -- the process that measures -----------------------------------------------------------------------------


def llama() -> Any:
    """Build the model to train: random weights, fp32, the same bits each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(use_cache=False, tie_word_embeddings=False, **SHAPE)).train()


def batch_of(size: int, sequence: int, device: str = "cpu") -> dict[str, Any]:
    import torch

    ids = torch.randint(0, VOCABULARY, (size, sequence), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids.to(device), "labels": ids.to(device)}


# -- plain training ----------------------------------------------------------------------------------------


def plain(device: str, *, usual: bool = False) -> Iterator[Figure]:
    """Yield the figures of one device. ``usual``: default allocator and threads, and no alternatives measured."""
    import torch

    from benchmarks.watch_memory import memory

    model = llama().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = batch_of(BATCH, SEQUENCE, device)
    on_cuda = device != "cpu"
    count = ROUNDS_ON_CUDA if on_cuda else ROUNDS

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    variants: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": nullcontext,
        "again": nullcontext,
        "watch": partial(_watched, model),
        "sums": partial(_watched, model, checksums=True),
        "anomaly": _anomaly,
        "debug": partial(_debugged, model),
    }
    if usual:
        variants = {name: made for name, made in variants.items() if name not in COMPARED}
    times = rounds(
        step,
        variants,
        count,
        lambda round_: _tell(f"{device}, {f'round {round_} of {count}' if round_ else 'warming up'}"),
        torch.cuda.synchronize if on_cuda else lambda: None,
        compared=COMPARED,
        few=count if on_cuda else FEW_ROUNDS,
    )
    if usual:
        yield from costs("watch", times, {}, " (allocator and threads as they come)")
        return
    parameters = sum(one.numel() for one in model.parameters())
    where = device if on_cuda else f"{device} ({torch.get_num_threads()} threads)"
    model_is = f"Llama of {parameters / 1e6:.1f} M parameters, fp32, AdamW"
    what = f"bare step on {where}: {model_is}, {BATCH} x {SEQUENCE} tokens, a small GPU's micro-batch"
    yield Figure("watch", what, median(one.wall for one in times["bare"]), "s")
    limits = {"watch": CUDA_LIMIT if on_cuda else DEFAULT_LIMIT, "sums": SUMS_LIMIT}
    yield from costs("watch", times, limits, " (on cuda)" if on_cuda else "", clock="wall" if on_cuda else "cpu")
    if not on_cuda:
        _tell("memory")
        yield from memory("watch", model, optimizer, batch_of(1, 16))


@contextmanager
def _watched(model: Any, **options: Any) -> Iterator[None]:
    from streamrace.detectors import NanWatch

    watch = NanWatch(model, **options)
    yield
    aside = watch.closed
    if watch.close() is not None or aside:
        raise RuntimeError("the watch found something, or failed, where all is well: its cost says nothing")


@contextmanager
def _anomaly() -> Iterator[None]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of being slow
        with torch.autograd.detect_anomaly(check_nan=True):
            yield


@contextmanager
def _debugged(model: Any) -> Iterator[None]:
    """Enter DebugUnderflowOverflow, and remove its hooks on exit: it would leave them on the model."""
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {module: set(module._forward_hooks) for module in model.modules()}
    DebugUnderflowOverflow(model)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module, kept in before.items():
            for key in set(module._forward_hooks) - kept:
                del module._forward_hooks[key]


# -- ZeRO-3 ------------------------------------------------------------------------------------------------


class RoundBegan(NamedTuple):
    round: int


class RoundsTimed(NamedTuple):
    """The times of each variant, and the number of the model's parameters."""

    times: dict[str, list[Any]]
    parameters: int


def zero3() -> Iterator[Figure]:
    """Measure stock DeepSpeed on the CPU, ranks of one thread each. A figure of a round is the mean over the ranks."""
    import torch

    from streamrace.device.ranks.cluster import Rank, run_ranks
    from streamrace.frameworks.deepspeed import adapter

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.isdir("/sys/class/net/lo") else "lo0")
    torch.set_num_threads(1)  # forked thread pools hang
    adapter.warm_up()
    found: dict[int, Times] = {}
    facts: dict[str, int] = {}

    def receive(rank: int, report: RoundBegan | RoundsTimed) -> None:
        if isinstance(report, RoundsTimed):
            facts["parameters"] = report.parameters
            found[rank] = {name: [Timed(*one) for one in times] for name, times in report.times.items()}
        elif rank == 0:
            _tell(f"round {report.round} of {ROUNDS}" if report.round else "warming up")

    kinds: Sequence[type[RoundBegan | RoundsTimed]] = (RoundBegan, RoundsTimed)

    def target(me: Rank) -> None:
        _zero3_rank(me)

    with TemporaryDirectory() as folder:
        run_ranks(WORLD, target, folder=Path(folder), kinds=kinds, receive=receive)
    times = {name: _mean([found[rank][name] for rank in range(WORLD)]) for name in found[0]}
    million = facts["parameters"] / 1e6
    what = f"bare step: Llama of {million:.1f} M parameters, fp32, AdamW, {RANK_BATCH} x {SEQUENCE} tokens a rank"
    yield Figure("watch-zero3", f"{what}, {WORLD} ranks of one thread", median(one.wall for one in times["bare"]), "s")
    yield from costs("watch-zero3", times, {"watch": DEFAULT_LIMIT, "sums": SUMS_LIMIT}, " (ZeRO-3)")


def _mean(ranks: Sequence[list[Timed]]) -> list[Timed]:
    """Return the mean over the ranks, step by step."""
    steps = zip(*ranks, strict=True)
    return [Timed(*(sum(values) / len(ranks) for values in zip(*step, strict=True))) for step in steps]


def _zero3_rank(me: Any) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from streamrace.frameworks.deepspeed import adapter

    rank, world = str(me.rank), str(me.world)
    os.environ.update(RANK=rank, WORLD_SIZE=world, LOCAL_RANK=rank, LOCAL_SIZE=world)
    adapter.start(simulated=False)
    store = dist.FileStore(str(me.store), me.world)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.world, timeout=timedelta(seconds=120))
    model = llama()
    parameters = sum(one.numel() for one in model.parameters())
    config = {
        "train_micro_batch_size_per_gpu": RANK_BATCH,
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    engine = adapter.initialize(model=model, optimizer=optimizer, config=config)
    batch = batch_of(RANK_BATCH, SEQUENCE)

    def step() -> None:
        engine.backward(engine(**batch).loss)
        engine.step()

    variants: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": nullcontext,
        "again": nullcontext,
        "watch": partial(_watched, engine),
        "sums": partial(_watched, engine, checksums=True),
    }
    times = rounds(step, variants, ROUNDS, lambda round_: me.report(RoundBegan(round_)), dist.barrier)
    me.report(RoundsTimed({name: [tuple(one) for one in times[name]] for name in times}, parameters))


def main() -> None:
    import torch

    (row,) = sys.argv[1:] or ["watch"]
    if row != "watch-zero3":
        torch.set_num_threads(os.cpu_count() or 1)
    devices = ("cpu", *(["cuda"] if torch.cuda.is_available() else []))
    found = {
        "watch": lambda: [one for device in devices for one in plain(device)],
        _USUAL: lambda: list(plain("cpu", usual=True)),
        "watch-zero3": lambda: list(zero3()),
    }[row]()
    _tell([one.__dict__ for one in found])


if __name__ == "__main__":
    main()
