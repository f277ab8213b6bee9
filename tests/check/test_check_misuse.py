"""What cannot be checked is refused in one sentence, with exit status 2, and leaves no run folder behind."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["nowhere.py"], {}, "there is no script 'nowhere.py'"),
        (["."], {}, "'.' is a folder without a __main__.py: give the script"),
        (["-m", "nowhere"], {}, "there is no module 'nowhere' to run"),
        ([], {}, "Name a script, for example: streamrace check train.py (or with -m a module)."),
        (["--what", "train.py"], {}, "No such option '--what'."),
        (["--ranks", "0", "train.py"], {}, "Invalid value for '--ranks': 0 is not in the range x>=1."),
        (["--slow", "mm", "train.py"], {}, "--slow takes PATTERN=FACTOR, for example kernel:aten::mm=20, not 'mm'"),
        (
            ["--slow", "host=2", "train.py"],
            {},
            "--slow 'host' begins with neither kernel: nor stream: (try kernel:aten::mm=20)",
        ),
        (["--slow", "stream:1=-2", "train.py"], {}, "--slow stream:1 needs a factor above 0, not -2.0"),
        (
            ["train.py"],
            {"DS_ACCELERATOR": "cpu"},
            "DS_ACCELERATOR is set to cpu, so DeepSpeed would not use the simulated GPU: unset it",
        ),
        (
            ["--ranks", "2", "train.py"],
            {"WORLD_SIZE": "2", "RANK": "0"},
            "--ranks starts ranks, but this is one already (WORLD_SIZE is set): leave one of the two out",
        ),
        (
            ["train.py"],
            {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0"},
            "the ranks of a simulated run are processes of one machine: start all of them here",
        ),
    ],
)
def test_a_wrong_call_is_one_sentence(
    check: Any, arguments: list[str], environment: dict[str, str], sentence: str
) -> None:
    check.script("print('never')")
    done = check(*arguments, **environment)
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines()[-1] == f"Error: {sentence}"
    assert not (check.folder / "runs" / "it").exists()


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.init_process_group('nccl')",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        "import deepspeed; deepspeed.init_distributed()",
    ],
)
def test_a_distributed_program_that_runs_alone_is_told_to_start_ranks(check: Any, line: str) -> None:
    script = check.script(f"import os\nimport torch\n{line}\n")
    done = check(script)
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "Error: train.py is a distributed program: run it with --ranks 2"
    assert "Traceback" not in done.err
    assert not (check.folder / "runs" / "it").exists()


def test_a_program_of_one_process_that_handles_it_goes_on(check: Any) -> None:
    script = check.script("""
        import os
        import torch

        try:
            torch.distributed.init_process_group("nccl")
        except ValueError:
            print("alone")
        try:
            os.environ["RANK"]
        except KeyError:
            torch.ones(3, device="cuda")
        os.environ["HERE"] if "HERE" in os.environ else {}["RANK"]
    """)
    done = check(script)
    assert (done.status, done.out.splitlines()[0]) == (3, "alone")
    assert "KeyError: 'RANK'" in done.err  # of a dict of its own: no launcher's variable


def test_a_run_is_replaced_only_when_that_is_asked_for(check: Any) -> None:
    script = check.script("import torch\ntorch.ones(3, device='cuda')")
    assert check(script).status == 0
    done = check(script)
    assert (done.status, done.err) == (
        2,
        "Error: runs/it holds a run already: choose another --name, or pass --overwrite\n",
    )
    assert check("--overwrite", script).status == 0


def test_what_is_no_run_is_never_replaced(check: Any) -> None:
    folder = check.folder / "runs" / "it"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("all of it")
    done = check("--overwrite", check.script("print('never')"))
    assert (done.status, done.out) == (2, "")
    assert "does not look like a run of this command" in done.err
    assert (folder / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--package", "stem"], "--package stem says no version: write, for example, stem==1.2.3"),
        (["--package", "x==1", "--package", "x==2"], "--package names two versions of x, 1 and 2: say one"),
        (["--package", "../x==1"], "--package takes NAME==VERSION, for example deepspeed==0.13.4, not '../x==1'"),
        (["--package", "stem==3"], "stem 3 cannot be installed: the package index has no stem"),
    ],
)
def test_a_package_that_cannot_be_had_is_one_sentence(
    check: Any, tmp_path: Any, arguments: list[str], sentence: str
) -> None:
    check.script("print('never')")
    done = check(*arguments, "train.py", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), STREAMRACE_CACHE=str(tmp_path))
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines()[-1] == f"Error: {sentence}"
    assert not (check.folder / "runs" / "it").exists()
