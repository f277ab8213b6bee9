"""Tests of the peers: what is said of a test follows from what it did in each rank, and from the list's reasons."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import beside, running
from benchmarks.peers.suites import List, Reason, Source, bring, read
from streamrace.device.refusals import refusal

TESTS = """
import os
import unittest
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestRanks(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def meet(self):
        store = torch.distributed.FileStore(self.file_name, 2)
        torch.distributed.init_process_group("nccl", rank=self.rank, world_size=2, store=store)
        torch.cuda.set_device(self.rank)

    def test_a_one_rank_fails(self):
        self.meet()
        self.assertEqual(self.rank, 0)
        torch.distributed.all_reduce(torch.ones(4, device="cuda"))

    def test_b_a_process_ends(self):
        os._exit(1)

    def test_c_skipped(self):
        raise unittest.SkipTest("not today")

    def test_d_a_sum(self):
        self.meet()
        x = torch.ones(4, device="cuda") * (self.rank + 1)
        torch.distributed.all_reduce(x)
        self.assertEqual(x.tolist(), [3.0] * 4)
"""


def test_each_rank_takes_the_place_of_a_process_and_a_failure_loses_no_other_test(tmp_path: Path) -> None:
    at = tmp_path / "theirs"
    at.mkdir()
    (at / "test_ranks.py").write_text(TESTS)
    results = running.run(
        ["test_ranks.py"], tmp_path / "out", ranks=2, gpus=1, at=at, plugin="torch_tests", options=["--rootdir=."]
    )
    listed = List(source=[], suite=[], reason=[Reason(why="it fails by itself", tests=["one_rank_fails$"])])
    rows = {str(row["test"]).rpartition("::")[2]: row for row in (command.row("ranks", one, listed) for one in results)}
    assert {name: row["result"] for name, row in rows.items()} == {
        "test_a_one_rank_fails": "does not pass",
        "test_b_a_process_ends": "failed",
        "test_c_skipped": "skipped by the test",
        "test_d_a_sum": "passed",
    }
    assert rows["test_a_one_rank_fails"]["why"] == "it fails by itself"
    assert rows["test_b_a_process_ends"]["why"] == "a process ended"


def test_a_refusal_is_counted_as_one_whatever_else_the_list_says() -> None:
    with pytest.raises(RuntimeError) as refused:
        refusal("a sparse tensor", "use the CPU")()
    result = running.Result("test_sparse", "failed", f"RuntimeError: {refused.value}")
    listed = List(source=[], suite=[], reason=[Reason(why="any", tests=["test_sparse"])])
    assert command.row("streams", result, listed)["result"] == "refused by name"


def test_a_test_that_was_skipped_in_one_suite_counts_where_it_ran() -> None:
    rows = [("two", "a", "skipped by the test"), ("four", "a", "passed"), ("four", "b", "skipped by the test")]
    frame = command.once(pd.DataFrame(rows, columns=["suite", "test", "result"]))
    assert frame[["suite", "test"]].to_numpy().tolist() == [["four", "a"], ["four", "b"]]
    (passed, skipped) = command.counts(frame.assign(why="")).to_dict("records")
    assert passed == {"suite": "four", "result": "passed", "why": "", "tests": 1, "example": "a"}
    assert skipped["tests"] == 1


def test_a_hang_has_no_reason_but_one_that_names_it() -> None:
    named = Reason(why="slow", tests=["test_slow$"], error="no end after")
    any_error = Reason(why="other names", tests=["test_slow$"])
    assert any_error.of("test_slow", "AttributeError: gone")
    for told in ("no end after 60 s", "a process ended"):
        assert not any_error.of("test_slow", told)
    assert named.of("test_slow", "no end after 60 s") and not named.of("test_slow", "AttributeError: gone")


def test_a_difference_from_the_real_build_needs_a_reason_that_this_build_does_not_refute() -> None:
    def result(test: str, said: str) -> running.Result:
        return running.Result(test, said, "" if said == "passed" else f"{test} {said}")

    named = {
        "equal": ("passed", "passed"), "worse": ("failed", "passed"), "better": ("passed", "failed"),
        "unknown": ("failed", "passed"), "unclear": ("passed", "failed"), "changed": ("failed", "failed"),
        "refuted": ("failed", "passed"), "left out": ("skipped", "skipped"), "too large": ("skipped", "passed"),
    }  # fmt: skip
    listed = List(
        source=[],
        suite=[],
        reason=[
            Reason(why="ours lacks it", tests=["worse"]),
            Reason(why="theirs lacks it", tests=["better"], build="real"),
            Reason(why="torch changed it", tests=["changed", "refuted"], build="both"),
        ],
    )
    ours, theirs = ([result(test, said[at]) for test, said in named.items()] for at in (0, 1))
    rows = beside.compare("suite", [*ours, result("alone", "passed")], theirs, listed)
    assert {row["test"]: (row["passes"], row["why"]) for row in rows} == {
        "equal": ("on both", ""),
        "worse": ("only on torch's CUDA build", "ours lacks it"),
        "better": ("only on the simulated GPU", "theirs lacks it"),
        "unknown": ("only on torch's CUDA build", "unknown failed"),
        "unclear": ("only on the simulated GPU", "unclear failed"),
        "changed": ("on neither", "torch changed it"),
        "refuted": ("only on torch's CUDA build", "torch changed it"),
        "left out": ("skipped by the test", "left out skipped"),
        "too large": ("only on torch's CUDA build", "skipped by the test: too large skipped"),
        "alone": ("only on the simulated GPU", ""),
    }
    assert {row["test"]: row["fault"] for row in rows if row["fault"]} == {
        "unknown": "unknown failed",
        "unclear": "unclear failed",
        "refuted": "it passes only on torch's CUDA build, and the list has a reason for both: torch changed it",
        "alone": "it is no test of torch's CUDA build",
    }


def test_a_start_that_runs_no_test_loses_none_in_silence(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text("import os\nos._exit(1)\n")
    with pytest.raises(RuntimeError, match="0 tests ran, and then none"):
        running.run(["test_ends.py"], tmp_path / "out", ranks=1, gpus=1, at=tmp_path, plugin="torch_tests", options=[])


def test_an_archive_with_another_checksum_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("def test_one(): pass")
    archive = tmp_path / "peer.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tmp_path / "tests", "peer/tests")
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    source = Source(name="peer", archive=archive.as_uri(), sha256=right, folder="peer/tests", plugin="torch_tests")
    with pytest.raises(ValueError, match="another SHA-256"):
        bring(source.model_copy(update={"sha256": "0" * 64}), tmp_path / "sources")
    assert not list((tmp_path / "sources").iterdir())
    assert (bring(source, tmp_path / "sources") / "test_one.py").exists()


def test_every_suite_has_a_source_and_every_reason_a_sentence() -> None:
    listed = read()
    names = {source.name for source in listed.source}
    assert {suite.source for suite in listed.suite} == names
    assert all(suite.ranks == 1 for suite in listed.suite if suite.real_build)
    assert all(bool(source.archive) != bool(source.repository) for source in listed.source)
    assert len({reason.why for reason in listed.reason}) == len(listed.reason)
