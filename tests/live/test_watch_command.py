"""``streamrace watch``: real training scripts, started as users start them, without a line of them changed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from streamrace.detectors.live.incident import load
from streamrace.device import processor
from streamrace.repro.__main__ import main
from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
BESIDE_PYTHON = Path(sys.executable).parent

PLAIN = """
import os, sys
import torch
from torch import nn
from neighbour import ALSO

bad = int(sys.argv[1])
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
print(__name__, os.path.isabs(__file__), sys.argv[1:], os.environ.get("DS_ACCELERATOR"), torch.get_num_threads(), ALSO)
for step in range(1, 6):
    x = torch.randn(16, 4)
    if step == bad:
        with torch.no_grad():
            x[3, 1] = float("nan")
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
print(sys.stdin.read())
"""

PARALLEL = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 12):
    x = torch.randn(16, 4)
    if step == 3 and dist.get_rank() == 1:
        x[3, 1] = float("nan")
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {dist.get_rank()} did step {step}\\n", end="", flush=True)  # one write: ranks share the pipe
dist.destroy_process_group()
"""

DEEPSPEED = """
import sys
import torch, deepspeed
from torch import nn
from streamrace.frameworks.deepspeed import adapter

adapter.start(simulated=False)
deepspeed.init_distributed("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 3},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for micro_batch in range(1, 9):
    x = torch.randn(16, 4)
    if micro_batch == 4 and torch.distributed.get_rank() == 1:
        x[3, 1] = float("nan")
    engine.backward(engine(x).pow(2).mean())
    engine.step()
print(f"arguments {sys.argv[1:]}\\n", end="")
"""

TWO_MODELS = """
import torch
from torch import nn

first, second = nn.Linear(2, 2), nn.Linear(2, 2)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
for _ in range(3):
    for model, optimizer in zip((first, second), optimizers):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
raise SystemExit(7)
"""

FAILING = """
def inner():
    return {}["missing"]

try:
    inner()
except KeyError as error:
    raise ValueError("what the script says") from error
"""


Watch = Callable[..., subprocess.CompletedProcess[str]]


def shell() -> dict[str, str]:
    """The environment of a shell that sets nothing up."""
    return {name: value for name, value in os.environ.items() if name not in (*processor.KERNELS, "DS_ACCELERATOR")}


def start(folder: Path, *command: str, said: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``, as from that shell."""
    return subprocess.run(
        [*command], cwd=folder, input=said, capture_output=True, text=True, timeout=200, env={**shell(), **more}
    )


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    """``streamrace watch`` as from that shell, in a process that need not import torch."""
    # torch.optim imports torch._dynamo with the first optimizer
    warm = Warm(["torch", "streamrace.detectors.live.auto", "torch._dynamo"], simulated=False, environment=shell())

    def call(
        folder: Path, *arguments: str, said: str = "", launched: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return warm.run(
            "-m", "streamrace", *launched, "watch", *arguments, folder=folder, environment=shell(), said=said
        )

    yield call
    warm.close()


def write(folder: Path, script: str) -> Path:
    (folder / "neighbour.py").write_text("ALSO = 'what stands beside the script'\n", encoding="utf-8")
    place = folder / "train.py"
    place.write_text(script, encoding="utf-8")
    return place


def free_port() -> str:
    """Of a range that is this worker's own: nobody else takes it between the asking and the use."""
    first = 21000 + 500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in range(first + os.getpid() % 400, first + 500):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return str(port)
    raise OSError("no port is free")


def test_a_healthy_script_runs_as_it_does_alone(tmp_path: Path, watch: Watch) -> None:
    """Watched it is in an interpreter of its own, too: torch decides at its import how many threads there are."""
    write(tmp_path, PLAIN)
    arguments = ("0", "--folder", "its own", "-m", "--", "--help")
    alone = start(tmp_path, sys.executable, "train.py", *arguments, said="typed by the user")
    real = (sys.executable, "-m", "streamrace", "watch", "--record", "recorded")
    watched = start(tmp_path, *real, "train.py", *arguments, said="typed by the user")
    as_module = watch(tmp_path, "-m", "train", *arguments, said="typed by the user")
    assert alone.returncode == watched.returncode == as_module.returncode == 0, watched.stderr
    assert watched.stdout == as_module.stdout == alone.stdout
    assert alone.stdout.startswith("__main__ True ") and alone.stdout.endswith("typed by the user\n")
    assert watched.stderr == "streamrace watch: Sequential (58 parameters), 5 steps. Nothing was found.\n"
    assert as_module.stderr == watched.stderr
    assert (tmp_path / "recorded" / "rank-0.jsonl").exists()

    again = watch(tmp_path, "--record", "recorded", "train.py", "0")
    assert again.returncode == 2 and again.stdout == ""
    assert again.stderr == "Error: recorded already holds a recording: give another folder\n"


def test_a_nan_is_found_saved_and_named_and_training_goes_on(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path, PLAIN)
    done = watch(tmp_path, "train.py", "1")
    assert done.returncode == 0
    assert "\n5 nan\n" in done.stdout
    finding = load(tmp_path / "incidents" / "incident-step1").finding
    assert (finding.cause, finding.step, finding.micro_batch, finding.detail) == ("data", 1, 1, "argument 0")
    saved = "incidents/incident-step1 ('streamrace report incidents/incident-step1' makes its page)"
    said = f"streamrace watch: Sequential (58 parameters), 5 steps. {finding.sentence()} Saved: {saved}."
    assert done.stderr.splitlines()[-1] == said
    # The first micro-batch is there too, though the watch came while it was computed.
    assert (tmp_path / "incidents" / "incident-step1" / "rank-0" / "batch.safetensors").exists()


@pytest.mark.parametrize("word", ["stop", "raise"])
def test_training_ends_at_the_finding_when_that_is_wanted(word: str, tmp_path: Path, watch: Watch) -> None:
    write(tmp_path, PLAIN)
    done = watch(tmp_path, "--on-finding", word, "train.py", "3")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("2 ")
    assert ("Traceback" in done.stderr) == (word == "raise")
    assert "Step 3, micro-batch 1, forward, rank 0: input argument 0 of the model: 1 NaN of 64 values" in done.stderr
    assert "repro/commands" not in done.stderr and "runpy" not in done.stderr
    assert not (tmp_path / "incidents").exists()


def test_a_script_that_fails_shows_its_own_lines_alone(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path, FAILING)
    alone = start(tmp_path, sys.executable, "train.py")
    done = watch(tmp_path, "train.py")
    assert done.returncode == alone.returncode == 1
    assert done.stderr == f"streamrace watch: nothing was watched: no model was trained here.\n{alone.stderr}"

    write(tmp_path, "this is no python\n")
    assert watch(tmp_path, "train.py").stderr.endswith(start(tmp_path, sys.executable, "train.py").stderr)


def test_one_of_two_models_is_watched_and_the_exit_status_is_the_script_s(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path, TWO_MODELS)
    done = watch(tmp_path, "train.py")
    assert done.returncode == 7
    assert done.stderr.splitlines() == [
        "streamrace watch: only Linear (6 parameters) is watched: the program trains another model too.",
        "streamrace watch: Linear (6 parameters), 3 steps. Nothing was found.",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["-m", "no.such.module"], "there is no module 'no.such.module' to run"),
        (["--watch", "loss,weights", "train.py"], "unknown watch 'weights': choose from inputs, outputs, loss"),
        (["--on-finding", "explode", "train.py"], "unknown action 'explode': choose from warn, raise, stop, save"),
        (["--bound", "-1", "train.py"], "a bound is the largest absolute value that is good: give one above 0"),
        (["--folder", "train.py", "train.py"], "train.py is a file, not a folder: choose another folder"),
        (["--cheksums", "train.py"], "No such option '--cheksums' (did you mean '--checksums'?)."),
    ],
)
def test_a_mistake_is_one_sentence_before_the_script_starts(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: most of what the command takes is the import of torch."""
    write(tmp_path, "print('started')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)  # the command puts the script's in its place
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        main(["watch", *arguments])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"Error: {sentence}" in said.err and "Traceback" not in said.err


def test_a_mistake_in_a_process_of_its_own_too(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path, "print('started')\n")
    done = watch(tmp_path, "--watch", "loss,weights", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "Error: unknown watch 'weights': choose from inputs, outputs, loss, gradients, \
output_gradients, parameters, partitions, optimizer\n"
    )


def test_ranks_of_torchrun_have_one_finding_and_stop_together(tmp_path: Path) -> None:
    write(tmp_path, PARALLEL)
    torchrun = [str(BESIDE_PYTHON / "torchrun"), "--nproc-per-node", "2", "--master-port", free_port()]
    done = start(
        tmp_path, *torchrun, "-m", "streamrace", "watch", "--on-finding", "stop,save", "train.py", OMP_NUM_THREADS="1"
    )
    assert done.returncode == 1
    assert done.stderr.count("BadValueWarning") == 1
    assert done.stderr.count("streamrace watch: ") == 1
    incident = load(tmp_path / "incidents" / "incident-step3")
    assert (incident.finding.cause, incident.finding.step, incident.finding.rank) == ("data", 3, 1)
    assert incident.world == 2 and not incident.missing
    last = [max(line for line in done.stdout.splitlines() if line.startswith(f"rank {rank} ")) for rank in (0, 1)]
    assert last[0].split()[2:] == last[1].split()[2:]


def test_what_deepspeeds_launcher_puts_before_the_command_is_the_scripts(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path, "import sys\nprint(sys.argv[1:])\n")
    for launched in (["--local_rank=1"], ["--local_rank", "1"]):
        done = watch(tmp_path, "train.py", "--its", "own", launched=launched)
        assert (done.returncode, done.stdout) == (0, "['--local_rank=1', '--its', 'own']\n"), done.stderr


@pytest.mark.wide
def test_deepspeed_starts_it_with_its_own_launcher(tmp_path: Path) -> None:
    write(tmp_path, DEEPSPEED)
    launcher = [str(BESIDE_PYTHON / "deepspeed"), "--num_accelerators", "2", "--master_port", free_port()]
    done = start(
        tmp_path,
        *launcher,
        *("--module", "streamrace", "watch", "train.py", "--its", "own"),
        DS_ACCELERATOR="cpu",
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"arguments ['--local_rank={rank}', '--its', 'own']" in done.stdout
    assert done.stderr.count("BadValueWarning") == 1
    finding = load(tmp_path / "incidents" / "incident-step2").finding
    assert (finding.cause, finding.step, finding.micro_batch, finding.rank) == ("data", 2, 2, 1)
