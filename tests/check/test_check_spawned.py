"""A program that starts processes itself: what they do on a GPU is not judged, and is never called clean."""

from __future__ import annotations

from typing import Any

import pytest

STARTS = """
    import sys
    import torch
    import torch.multiprocessing as mp

    def spawned(rank):
        torch.ones(2, device=f"cuda:{rank}")

    def idle(rank):
        torch.ones(2)

    if __name__ == "__main__":
        how, function = sys.argv[1], globals()[sys.argv[2]]
        if how == "mp.spawn":
            mp.spawn(function, nprocs=2)
        else:
            one = mp.get_context(how).Process(target=function, args=(0,))
            one.start()
            one.join()
        torch.ones(2, device="cuda") + 1
    """
SENTENCE = "what it does there would not be judged: let --ranks N, or torchrun, start the ranks"


@pytest.mark.parametrize("how", ["mp.spawn", pytest.param("spawn", marks=pytest.mark.wide), "fork"])
def test_what_its_processes_do_on_a_gpu_is_not_called_clean(check: Any, how: str) -> None:
    done = check(check.script(STARTS), how, "spawned")
    assert done.status not in (0, 1), done.out
    assert SENTENCE in done.err and done.findings["verdict"] == "unknown"


@pytest.mark.parametrize("how", [pytest.param("mp.spawn", marks=pytest.mark.wide), "fork"])
def test_processes_without_a_gpu_are_nobodys_affair(check: Any, how: str) -> None:
    done = check(check.script(STARTS), how, "idle")
    assert (done.status, done.findings["verdict"]) == (0, "clean"), done.err
