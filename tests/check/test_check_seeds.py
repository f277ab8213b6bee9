"""Random numbers of a program that sets no seed: check sets one for all its runs, and leaves what the program seeds."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

RACE = """
    import random, sys
    import numpy as np
    import torch

    {seed}
    drawn = torch.rand(4), torch.rand(4, device="cuda"), random.random(), np.random.rand(), {numpys}
    print("drew", [one.tolist() if hasattr(one, "tolist") else one for one in drawn])
    kept = torch.zeros(4, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    kept.add_(drawn[0].cuda() + drawn[1] + sum(drawn[2:]))
    with torch.cuda.stream(side):
        read = kept + 1
    torch.cuda.synchronize()
    print("came to", read.sum().item())
"""
GENERATORS = "np.random.default_rng().random(), np.random.RandomState().rand()"


def said(out: str, begin: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith(begin)]


def test_a_race_of_a_program_without_a_seed_is_harmful_and_its_command_draws_the_same(check: Any) -> None:
    check.script(RACE.format(seed="", numpys=GENERATORS))
    done = check("--witnesses", "1", "train.py")
    (race,) = done.findings["races"]
    assert race["witness"]["verdict"] == "harmful", race["witness"]["says"]
    told = (
        "The program draws from random, numpy.random, torch and torch.cuda without setting a seed: check set one for "
        "all its runs (3141592 + rank)"
    )
    assert done.findings["checked"]["seeded"] == told
    assert f"{told}." in done.told

    _, _, *words = shlex.split(race["witness"]["command"])
    again = check("--overwrite", *words)
    assert said(again.out, "drew") == said(done.out, "drew") != []
    assert said(again.out, "came to") != said(done.out, "came to")


def test_a_program_that_seeds_draws_what_it_draws_without_the_tool(check: Any) -> None:
    """It need not be at its beginning: what was drawn before is told, from there on nothing is touched."""
    seed = "torch.manual_seed(5); random.seed(5); np.random.seed(5)"
    fixed = "np.random.default_rng(5).random()"
    check.script(RACE.format(seed=seed, numpys=fixed))
    done = check("--witnesses", "1", "train.py")
    assert done.findings["races"][0]["witness"]["verdict"] == "harmful"
    assert "seeded" not in done.findings["checked"] and "without setting a seed" not in done.told
    first = torch.rand(4, generator=torch.Generator().manual_seed(5)).tolist()  # the device's first are the host's
    rest = [random.Random(5).random(), np.random.RandomState(5).rand(), np.random.default_rng(5).random()]
    assert said(done.out, "drew") == [f"drew {[first, first, *rest]}"]
    check.script(RACE.format(seed=f"random.random(); torch.rand(2); {seed}", numpys=fixed))
    late = check("--overwrite", "train.py")
    assert said(late.out, "drew") == said(done.out, "drew")
    assert "draws from random and torch without setting a seed" in late.told


def test_ranks_and_a_package_that_is_imported_first_draw_the_same_in_each_run(check: Any) -> None:
    """Each rank draws other numbers, as unseeded ones do. What the package seeds while it is imported, stays seeded."""
    (check.folder / "job").mkdir()
    check.script("import random, torch; torch.rand(2); random.seed(5)", "job/__init__.py")
    check.script(
        """
        import os, random, torch
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        drawn = [torch.rand(1).item(), torch.rand(1, device="cuda").item(), random.random()]
        os.write(1, f"drew {drawn}\\n".encode())
        """,
        "job/__main__.py",
    )
    first, second = (check("--overwrite", "--ranks", "2", "-m", "job") for _ in range(2))
    one, other = sorted(re.findall("drew .*", first.out))
    assert sorted(re.findall("drew .*", second.out)) == [one, other]
    drawn, others = (json.loads(line.removeprefix("drew ")) for line in (one, other))
    assert drawn[0] != others[0] and drawn[1] != others[1]
    assert drawn[2] == others[2] == random.Random(5).random()
    assert "draws from torch and torch.cuda without setting a seed" in first.told


def test_sets_of_strings_have_one_order_in_all_runs(check: Any) -> None:
    """In a process that starts as a user's does; one that has a hash seed keeps it."""
    check.script(RACE.format(seed="torch.manual_seed(5)", numpys=0).replace("read = kept + 1", "read = kept + place"))
    text = (check.folder / "train.py").read_text()
    order = "place = sum(at * int(one) for at, one in enumerate({str(one) for one in range(40)}))\n"
    (check.folder / "train.py").write_text(order + text + "print('hash', hash('a'))\n")
    its = {name: value for name, value in os.environ.items() if name not in ("PYTHONHASHSEED", "DS_ACCELERATOR")}
    its |= {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}

    def python(*words: str, **more: str) -> str:
        words = (sys.executable, *words)
        return subprocess.run(words, cwd=check.folder, env=its | more, stdout=subprocess.PIPE, text=True).stdout

    command, plain = ("-m", "streamrace", "check", "--witnesses"), ("-c", "print('hash', hash('a'))")
    out = python(*command, "1", "train.py")
    assert "Race 1 is harmful" in out
    assert said(out, "hash") == python(*plain, PYTHONHASHSEED="0").splitlines()
    out = python(*command, "0", "train.py", PYTHONHASHSEED="7")
    assert said(out, "hash") == python(*plain, PYTHONHASHSEED="7").splitlines()
