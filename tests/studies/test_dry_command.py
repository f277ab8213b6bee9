"""``streamrace dry``: what a user gets for a job, and what they are told when it cannot be rehearsed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamrace.device import hardware
from streamrace.device.hardware import profile_names
from streamrace.reports.data.dry import load, memory_table
from streamrace.repro.__main__ import main
from streamrace.scenarios.job import predicted
from streamrace.studies.predicted_steps import PARTS
from tests.studies.small import configuration, model
from tests.warm import ROOT, shell

MODELS = '''
import torch
from torch import nn

class Plain(nn.Module):
    """A model of the user's own: another batch, the loss by itself."""
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(4)])
    def forward(self, x, y):
        for layer in self.layers:
            x = layer(x).relu()
        return (x - y).square().mean()

class Routed(Plain):
    """Control flow on data: how many tokens go to an expert."""
    def forward(self, x, y):
        chosen = self.layers[0](x).argmax(-1)
        count = int((chosen == 0).sum())
        return (self.layers[1](x[: count + 1]) - y[: count + 1]).square().mean()

class Masked(Plain):
    """Control flow on what the host brought along: that can be followed."""
    def forward(self, x, y, mask):
        if mask.bool().all().item():
            return super().forward(x, y)
        raise AssertionError("the mask is all ones")

def batch(micro_batch, sequence):
    x = torch.zeros(micro_batch, 256, dtype=torch.bfloat16)  # what the parameters are in: DeepSpeed casts no inputs
    return {"x": x, "y": x.clone()}

def masked_batch(micro_batch, sequence):
    return {**batch(micro_batch, sequence), "mask": torch.ones(micro_batch)}

def plain():
    return Plain(), batch

def routed():
    return Routed(), batch

def masked():
    return Masked(), masked_batch

def nothing():
    return 3

class NoLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))
    def forward(self, x, y):
        return {"logits": x}

def no_loss():
    return NoLoss(), batch
'''


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """``dry("--hpz", "4", ...)`` in a folder of its own: the exit status, and what was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "usermodels.py").write_text(MODELS)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str]:
        common = ("--nodes", "2", "--gpus", "4", "--name", "it", "--overwrite", "--sequence", "128", "--one-rank")
        try:
            main(["dry", *common, *arguments])
            status = 0
        except SystemExit as done:
            status = int(done.code or 0)
        out, err = capfd.readouterr()
        return status, " ".join((out + err).replace("│", " ").split())

    return call


def test_a_script_reads_the_file_that_is_written_and_nothing_else(
    dry: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("--nodes", "1", "--gpus", "2", "--sequence", "128", "--one-rank", "--model", "usermodels:plain")
    main(["dry", *words, "--name", "it", "--format", "json"])
    out, err = capfd.readouterr()
    assert out == (tmp_path / "runs/it/dry.json").read_text()
    assert "dry run: " in err


def test_a_user_learns_what_the_job_would_do(dry: Any, tmp_path: Path) -> None:
    """With a model and a DeepSpeed JSON of their own."""
    arguments = ("--model", model(tmp_path), "--config", configuration(tmp_path), "--hpz", "4", "--accumulation", "2")
    status, said = dry(*arguments, "--fix", "none", "--expect", "race")
    assert status == 0, said
    for words in (
        "partition_parameters.py:1946 Init._partition_param_sec",
        "Race 2 lacks the same wait.",
        "s an optimizer step",
        "tokens/s on 8 GPUs",
        "TFLOPs per GPU",
        "exposed communication",
        "nccl hpz",
        "(host blocked)",
        "Memory at its peak",
        "leave each node",
    ):
        assert words in said
    assert "closest: " in said or "reversed by up to " in said
    found = json.loads((tmp_path / "runs" / "it" / "dry.json").read_text())
    printed = " ".join(said.replace("│", " ").split())
    names = [[f"{name['kind']} {name['name']}" for name in race["names"]] for race in found["races"]]
    assert any(name.startswith("secondary model.layers.3") for name in names[1]), "of the race that is folded"
    assert names[0][0].startswith("secondary model.") and names[0][0] in printed
    assert found["accumulation"] == 2 and found["micro_batch"] == 1
    assert {"primary", "secondary", "master", "optimizer", "gradient", "activations"} <= set(found["memory"]["kinds"])
    (copy,) = (row for row in memory_table(load(tmp_path / "runs" / "it").file.memory).rows if "(hpZ)" in row[0])
    assert copy[1] <= copy[2] == pytest.approx(2 * found["parameters"] / 4 / 2**30, rel=0.001), "whole at some moment"
    assert all(race["slack_ns"] for race in found["races"]) and len(found["races"]) == 2
    timeline = json.loads(gzip.decompress((tmp_path / "runs" / "it" / "timeline.json.gz").read_bytes()))
    arrows = [event for event in timeline["traceEvents"] if event["ph"] == "s"]
    assert arrows
    assert "streamrace report runs/it" in said
    main(["report", "runs/it"])
    told = load(tmp_path / "runs" / "it").file.output.sentence
    assert told in said
    page = (tmp_path / "runs" / "it" / "report" / "index.html").read_text(encoding="utf-8")
    assert told in page and 'href="../dry.json"' in page
    assert 'class="line hit"' in page, "the lines that race are kept with it"
    assert told in (tmp_path / "runs" / "it" / "report" / "report.md").read_text(encoding="utf-8")


def test_dry_runs_are_set_side_by_side(dry: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One by DeepSpeed and one by our own engine: the figures are those of each."""
    small = ("--model", model(tmp_path), "--network", "25")
    for way in (("--name", "hpz", "--hpz", "4"), ("--name", "ours", "--sharding", "IIG")):
        status, said = dry(*small, *way)
        assert status == 0, said
    main(["report", "runs/hpz", "runs/ours"])
    told = capfd.readouterr().out
    target = tmp_path / "runs" / "hpz-and-ours" / "report"
    found = json.loads((target / "findings.json").read_text(encoding="utf-8"))
    files = {name: load(tmp_path / "runs" / name).file for name in ("hpz", "ours")}
    best, other = sorted(files, key=lambda name: files[name].step_s)
    gain = files[other].step_s / files[best].step_s
    assert told.startswith(f"{best} is the fastest that fits: ") and f"{gain:.2f} times as fast as {other} (" in told
    assert [row["run"] for row in found["rows"]] == [best, other]
    for row in found["rows"]:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_s"])
        assert row["peak_gib"] < row["reserved_gib"] and row["between_s"] > 0
    differ = {row["run"]: (row["hpz"], row["sharding"]) for row in found["options"]}
    assert differ == {"hpz": ("4", ""), "ours": ("1", "IIG")}
    assert "| dry run | --hpz | --sharding |" in (target / "report.md").read_text(encoding="utf-8")


def test_with_the_synchronisation_it_is_clean(dry: Any, tmp_path: Path) -> None:
    arguments = ("--model", model(tmp_path), "--config", configuration(tmp_path), "--hpz", "4", "--checkpointing")
    status, said = dry(*arguments, "--expect", "clean")
    assert status == 0 and "Clean: all accesses on different streams are ordered." in said
    status, said = dry(*arguments, "--expect", "race")
    assert status == 1 and "Expected race, found clean." in said


def test_a_json_with_all_its_batch_sizes_and_fp16_is_rehearsed_as_it_is(dry: Any, tmp_path: Path) -> None:
    """128 = 4 x 4 x 8 GPUs, and a loss scale: what the options say by default is no contradiction."""
    sizes = {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
    halves = {"bf16": {"enabled": False}, "fp16": {"enabled": True}}
    config = configuration(tmp_path, {"zero_hpz_partition_size": 4}, **sizes, **halves)
    status, said = dry("--model", model(tmp_path), "--config", config, "--steps", "1")
    assert status == 0, said
    assert "sequences of 128 tokens" in said and "micro-batch 1 of" not in said
    found = json.loads((tmp_path / "runs" / "it" / "dry.json").read_text())
    assert (found["micro_batch"], found["accumulation"]) == (4, 4)
    status, said = dry(
        "--model", model(tmp_path), "--config", configuration(tmp_path, **{**sizes, "train_batch_size": 127})
    )
    assert status == 2
    assert f"cannot be built with {tmp_path / 'ds.json'}: " in said and "127 != 4 * 4 * 8" in said


def test_the_other_stages_run_too(dry: Any, tmp_path: Path) -> None:
    """ZeRO-2 lets go of gradients that another stream may still use: whoever gets their memory comes behind."""
    status, said = dry("--model", model(tmp_path), "--stage", "2", "--frozen", "*mlp*")
    assert status == 0, said
    assert "dry run: clean" in said
    status, said = dry("--model", model(tmp_path), "--stage", "1", "--no-overlap-comm")
    assert status == 0, said
    assert "dry run: clean" in said


def test_a_model_of_ones_own(dry: Any, tmp_path: Path) -> None:
    status, said = dry("--model", "usermodels:plain", "--hpz", "2")
    assert status == 0, said
    assert "dry run: clean" in said
    # so small a model is gathered once a step, and hpZ's copies are for nobody
    assert "Clean for the part that ran: all accesses on different streams are ordered, but not everything" in said
    assert "hpZ is on, and no secondary partition that training wrote was ever read" in said
    (sentence,) = json.loads((tmp_path / "runs" / "it" / "dry.json").read_text())["unexercised"]
    assert sentence.startswith("hpZ is on")
    status, said = dry("--model", "usermodels:masked")
    assert status == 0, said


def test_a_model_that_reads_values_is_told_where(dry: Any) -> None:
    status, said = dry("--model", "usermodels:routed")
    assert status == 2
    assert "a dry run has no values" in said and "at usermodels.py:19 (forward)" in said
    assert "Take the read out of the training step" in said and "Traceback" not in said


def test_a_job_that_does_not_fit_is_told_where_and_what_to_do(dry: Any, tmp_path: Path) -> None:
    from streamrace.device.hardware.profile import _PROFILES

    small_gpu = tmp_path / "small.toml"
    text = (_PROFILES / f"{profile_names()[0]}.toml").read_text()
    small_gpu.write_text(text.replace("memory_gbytes = 80.0", "memory_gbytes = 0.08"))
    arguments = ("--model", model(tmp_path), "--config", configuration(tmp_path), "--micro-batch", "8")
    status, said = dry(*arguments, "--hardware", str(small_gpu), "--hpz", "4")
    assert status == 1
    assert "The job does not fit on the GPU." in said
    assert "they are full in forward of step 1, micro-batch 1 at " in said
    assert "Try --checkpointing, a smaller --micro-batch, a larger --hpz group, or none, more GPUs." in said
    again, said = dry(*arguments, "--hardware", str(small_gpu), "--hpz", "4")
    assert again == 1 and "they are full in forward of step 1, micro-batch 1 at " in said, "in place of the first"


def test_deepspeed_refuses_a_json(dry: Any, tmp_path: Path) -> None:
    wrong = configuration(tmp_path, {"stage3_prefetch_bucket_size": "many"})
    status, said = dry("--model", model(tmp_path), "--config", wrong)
    assert status == 2
    assert f"{wrong}" in said and "stage3_prefetch_bucket_size" in said and "Traceback" not in said
    assert not Path("runs/it").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "llama-3"], "there is no model 'llama-3': choose one of llama-2-7b"),
        (["--model", "usermodels:missing"], "the module 'usermodels' has no 'missing'"),
        (["--model", "nowhere:model"], "cannot import 'nowhere'"),
        (["--model", "usermodels:nothing"], "usermodels:nothing returns int, not a torch module"),
        (["--model", "usermodels:no_loss"], "the model returns dict, and no loss in it"),
        (["--model", "usermodels:plain", "--frozen", "*xyz*"], "no parameter matches the frozen pattern '*xyz*'"),
        (["--model", "usermodels:plain", "--frozen", "*"], "leave no parameter to train"),
        (["--model", "usermodels:plain", "--checkpointing"], "has no gradient checkpointing of transformers' kind"),
        (["--hpz", "3"], "an hpZ group of 3 does not divide 8 GPUs: choose one of 1, 2, 4, 8"),
        (["--stage", "2", "--hpz", "4"], "hpZ, qwZ and qgZ are parts of ZeRO-3"),
        (["--hardware", "b300"], "there is no hardware profile 'b300'"),
        (["--config", "nowhere.json"], "cannot read the DeepSpeed configuration nowhere.json"),
    ],
)
def test_what_cannot_be_rehearsed_is_told_in_a_sentence(dry: Any, arguments: list[str], words: str) -> None:
    status, said = dry(*arguments)
    assert status == 2
    assert words in said and "Traceback" not in said
    assert not Path("runs/it").exists()


@pytest.mark.parametrize(
    ("zero", "rest", "arguments", "words"),
    [
        ({"offload_optimizer": {"device": "cpu"}}, {}, [], "moves state to cpu (offload_optimizer)"),
        ({"mics_shard_size": 4}, {}, [], "mics_shard_size"),
        ({"sub_group_size": "auto"}, {}, [], "'zero_optimization.sub_group_size' is \"auto\", and nothing here says"),
        ({}, {"optimizer": {"type": "Lion"}}, [], "asks for the optimizer 'Lion', and a dry run has Adam and AdamW"),
        ({}, {"train_micro_batch_size_per_gpu": 4}, ["--micro-batch", "2"], "--micro-batch is 2, and"),
        ({}, {"bf16": {"enabled": True}}, ["--precision", "fp32"], "--precision is fp32, and"),
    ],
)
def test_a_json_that_cannot_be_rehearsed(
    dry: Any, tmp_path: Path, zero: dict[str, Any], rest: dict[str, Any], arguments: list[str], words: str
) -> None:
    status, said = dry("--model", model(tmp_path), "--config", configuration(tmp_path, zero, **rest), *arguments)
    assert status == 2
    assert words in said and "Traceback" not in said
    assert not Path("runs/it").exists()


@pytest.mark.wide
def test_what_is_known_to_be_wrong_is_refused_before_deepspeed_is_imported(tmp_path: Path) -> None:
    """In an interpreter in which it cannot be imported. No folder is left."""
    code = f"""
import sys
sys.modules["deepspeed"] = None
from streamrace.repro.__main__ import main
for wrong in (["--hardware", "b300"], ["--model", "llama-3"], ["--config", "nowhere.json"]):
    try:
        main(["dry", *wrong, "--runs", {str(tmp_path / "runs")!r}])
    except SystemExit as end:
        print(end.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split() == ["2", "2", "2"] and not (tmp_path / "runs").exists()
    said = ["no hardware profile 'b300'", "no model 'llama-3'", "cannot read the DeepSpeed configuration nowhere.json"]
    assert all(words in line for words, line in zip(said, done.stderr.splitlines(), strict=True)), done.stderr


def test_our_own_engine_says_which_models_it_cannot_shard(dry: Any) -> None:
    status, said = dry("--model", "gpt-18b", "--sharding", "IIG", "--group", "8")
    assert status == 2
    assert "gpt-18b multiplies by its embedding's weight outside of the embedding" in " ".join(said.split())
    assert not Path("runs/it").exists()


def test_another_runs_folder_is_not_replaced(dry: Any, tmp_path: Path) -> None:
    foreign = tmp_path / "runs" / "it"
    foreign.mkdir(parents=True)
    (foreign / "diary.txt").write_text("mine")
    status, said = dry()
    assert status == 2 and "does not look like a run" in said
    assert (foreign / "diary.txt").read_text() == "mine"


def test_the_hosts_own_code_takes_time_unless_it_is_to_take_none(dry: Any, tmp_path: Path) -> None:
    """A small model waits for the host: a step is longer, and all that tells of it names the processor."""
    seconds = []
    for host in (("--host", "none"), (), ("--host", "epyc-7003")):
        status, said = dry("--model", "usermodels:plain", "--accumulation", "2", *host)
        assert status == 0 and ("hosts of epyc-7003" in said) == (host != ("--host", "none"))
        seconds.append(step_s(tmp_path))
    assert seconds[1] > 5 * seconds[0] and seconds[1] == seconds[2]
    status, said = dry("--model", "usermodels:plain", "--host", "abacus")
    assert status == 2 and "there is no host 'abacus': choose one of epyc-7003" in said


def test_a_profile_that_has_the_price_of_its_own_host_keeps_it(dry: Any, tmp_path: Path) -> None:
    shipped = Path(hardware.__file__).with_name("profiles").joinpath("a100-12.5gbps.toml").read_text()
    (tmp_path / "own.toml").write_text(f"call_ns = 100\n{shipped}")
    for host in ((), ("--host", "epyc-7003")):
        status, said = dry("--model", "usermodels:plain", "--accumulation", "2", "--hardware", "own.toml", *host)
        assert status == 0 and ("hosts of epyc-7003" in said) == bool(host)


def step_s(folder: Path) -> float:
    return float(json.loads((folder / "runs" / "it" / "dry.json").read_text(encoding="utf-8"))["step_s"])


def test_the_third_step_is_reported_where_deepspeed_prepares_its_trace_in_the_second(tmp_path: Path) -> None:
    """The file's own accumulation counts as the option's does."""
    twice = tmp_path / "ds.json"
    twice.write_text(json.dumps({"gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3}}))
    once = predicted()
    assert (once.host, once.steps, predicted(host="none").steps) == ("epyc-7003", 3, 2)
    assert predicted(accumulation=2).steps == predicted(config=str(twice)).steps == 2
    assert predicted(steps=5).steps == 5


def test_what_torch_reserves_is_told_and_decides_whether_a_job_fits(dry: Any, tmp_path: Path) -> None:
    """Tensors lie in segments of 2 and 20 MiB, and the GPU has room for the tensors alone."""
    shipped = Path(hardware.__file__).with_name("profiles").joinpath("a100-12.5gbps.toml").read_text()
    (tmp_path / "own.toml").write_text(shipped.replace("memory_gbytes = 80.0", "memory_gbytes = 0.935"))
    status, said = dry("--model", "usermodels:plain", "--hardware", "own.toml", "--host", "none")
    file = json.loads((tmp_path / "runs" / "it" / "dry.json").read_text(encoding="utf-8"))
    assert status == 1 and not file["fits"] and file["memory"]["peak"] < 0.935 * (1 << 30) < file["cache"]["reserved"]
    reserved = f"torch reserves {file['cache']['reserved'] / (1 << 30):.2f} GiB"
    assert "free memory lies in pieces" in said and reserved in said
    status, said = dry("--model", "usermodels:plain", "--host", "none")
    assert status == 0 and "it gave cached memory back" not in said


def test_the_settings_of_the_allocator_hold_and_are_told(tmp_path: Path) -> None:
    """Whoever compares two dry runs sees why one reserves less."""
    (tmp_path / "usermodels.py").write_text(MODELS)
    found = []
    for settings in ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}):
        command = [
            sys.executable,
            "-m",
            "streamrace",
            "dry",
            "--model",
            "usermodels:plain",
            "--nodes",
            "1",
            "--gpus",
            "2",
        ]
        command += ["--one-rank", "--name", "it", "--overwrite"]
        environment = shell() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])} | settings
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        found.append(json.loads((tmp_path / "runs" / "it" / "dry.json").read_text(encoding="utf-8")))
    plain, expandable = found
    assert expandable["versions"] == plain["versions"] | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert expandable["memory"]["peak"] == plain["memory"]["peak"]
    assert expandable["cache"]["reserved"] != plain["cache"]["reserved"]
