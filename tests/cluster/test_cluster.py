"""Ranks that die, raise or fall silent: the right one is named, soon, and no process is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import psutil
import pytest
import torch.distributed as dist

from streamrace.device.ranks.cluster import Rank, RankFailed, run_ranks
from streamrace.process.messages import UnknownMessage, decode, encode
from tests.cluster.patience import in_vain

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class Word(NamedTuple):
    number: int
    text: str = ""


class Unexpected(NamedTuple):
    number: int


class Ranks:
    """Runs ranks; afterwards all their processes must be gone. ``waited``: seconds that nothing was heard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []
        self.heard: list[tuple[int, Word]] = []
        self.waited: list[float] = []

    def run(self, world: int, target: Callable[[Rank], None], **how: Any) -> None:
        def receive(rank: int, message: Word) -> None:
            self.heard.append((rank, message))

        try:
            with in_vain() as self.waited:
                options = {"kinds": (Word,), "receive": receive, **how}
                run_ranks(world, target, folder=self.folder, started=self.pids.extend, **options)
        finally:
            assert len(self.pids) == world
            for pid in self.pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
            assert list(self.folder.glob("store*")) == []

    def fails(self, world: int, target: Callable[[Rank], None], **how: Any) -> RankFailed:
        with pytest.raises(RankFailed) as error:
            self.run(world, target, **how)
        return error.value


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path / "logs")


def stay(me: Rank) -> None:
    signal.pause()


def test_all_ranks_are_heard(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        for number in range(3):
            me.report(Word(number, f"of {me.world}"))

    ranks.run(3, target)
    assert ranks.waited == []
    assert sorted(ranks.heard, key=str) == [(rank, Word(n, "of 3")) for rank in range(3) for n in range(3)]


def test_many_and_large_messages_arrive_in_order(ranks: Ranks) -> None:
    ranks.run(1, lambda me: [me.report(Word(n, "x" * 10_000)) for n in range(100)] and None)
    assert [message.number for _, message in ranks.heard] == list(range(100))


def test_a_rank_that_is_killed(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        stay(me)

    failed = ranks.fails(3, target)
    assert (failed.rank, failed.reason) == (1, "was killed by SIGKILL")
    assert ranks.waited == []  # though the others would stay for ever
    assert str(failed).startswith("rank 1 was killed by SIGKILL (its output: ")


def test_a_rank_that_raises(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        if me.rank == 2:
            raise ValueError("the loss is not finite\nand more")
        stay(me)

    failed = ranks.fails(3, target)
    assert (failed.rank, failed.reason) == (2, "raised ValueError: the loss is not finite")
    assert sum(ranks.waited) <= 0.5  # for the death that it might have complained of
    assert failed.log is not None
    log = failed.log.read_text()
    assert "Traceback" in log
    assert "and more" in log


def test_a_rank_that_leaves_with_a_status(ranks: Ranks) -> None:
    failed = ranks.fails(2, lambda me: os._exit(7) if me.rank == 1 else stay(me))
    assert (failed.rank, failed.reason) == (1, "ended with exit status 7")
    assert sum(ranks.waited) <= 0.5


def test_what_a_rank_said_before_it_died_is_heard(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        me.report(Word(1, "last"))
        os.kill(os.getpid(), signal.SIGKILL)

    ranks.fails(1, target)
    assert ranks.waited == []
    assert ranks.heard == [(0, Word(1, "last"))]


def test_a_message_that_nobody_expects_fails_its_rank(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        if me.rank == 1:
            me.report(Unexpected(3))
        stay(me)

    failed = ranks.fails(2, target)
    assert (failed.rank, failed.reason) == (
        1,
        "sent an unknown message Unexpected of 1 fields (expected: Word, Failed)",
    )


@dataclass(frozen=True)
class Spoken:
    word: Word | None
    places: tuple[Word, ...]


class Nested(NamedTuple):
    pairs: list[tuple[int, str]]
    sizes: tuple[int, ...]
    facts: dict[str, Any]
    spoken: tuple[Spoken, Spoken]


def test_what_was_a_tuple_or_a_class_is_one_again() -> None:
    spoken = (Spoken(None, (Word(1), Word(2, "b"))), Spoken(Word(3), ()))
    sent = Nested([(1, "a"), (2, "b")], (3, 4, 5), {"list": [1, 2]}, spoken)
    assert decode(encode(sent), (Word, Nested)) == sent


def test_a_message_with_too_few_fields_is_unknown() -> None:
    with pytest.raises(UnknownMessage, match="sent an unknown message Word of 1 fields"):
        decode(msgpack.packb(("Word", 1)), (Word,))


def _outlive(pid: int) -> None:
    """Return when that process has ended, and its parent has seen it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(10)


def test_the_killed_rank_is_named_not_those_that_complain_of_it(ranks: Ranks) -> None:
    """Rank 0 raises first; the death that it complains of is seen a moment later."""

    reader, writer = os.pipe()

    def target(me: Rank) -> None:
        if me.rank == 0:
            os.write(writer, str(os.getpid()).encode())
            raise ConnectionError("connection closed by peer")
        _outlive(int(os.read(reader, 32)))
        os.kill(os.getpid(), signal.SIGKILL)

    failed = ranks.fails(2, target)
    assert (failed.rank, failed.reason) == (1, "was killed by SIGKILL")


def test_a_rank_killed_within_a_collective(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(me.store), me.world), rank=me.rank, world_size=me.world
        )
        dist.barrier()
        if me.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    failed = ranks.fails(3, target)
    assert (failed.rank, failed.reason) == (2, "was killed by SIGKILL")
    assert ranks.waited == []


def test_the_first_that_raised_is_named(ranks: Ranks) -> None:
    reader, writer = os.pipe()

    def target(me: Rank) -> None:
        if me.rank == 0:
            os.write(writer, str(os.getpid()).encode())
        else:
            _outlive(int(os.read(reader, 32)))
        raise ValueError(f"rank {me.rank}")

    assert ranks.fails(2, target).reason == "raised ValueError: rank 0"


def test_the_interrupt_of_a_person_leaves_no_process(ranks: Ranks) -> None:
    def receive(rank: int, message: Word) -> None:
        raise KeyboardInterrupt

    def target(me: Rank) -> None:
        me.report(Word(1))
        stay(me)

    with pytest.raises(KeyboardInterrupt):
        ranks.run(2, target, receive=receive)
    assert ranks.waited == []


def test_ranks_that_fall_silent(ranks: Ranks) -> None:
    failed = ranks.fails(3, stay, silence_s=0.3)
    assert failed.rank == 0
    assert "and 2 others did not say anything for 0.3 s" in failed.reason
    assert ranks.waited == [0.3]


def test_the_last_rank_that_falls_silent(ranks: Ranks) -> None:
    failed = ranks.fails(2, lambda me: stay(me) if me.rank else None, silence_s=0.3)
    assert (failed.rank, failed.reason) == (1, "did not say anything for 0.3 s")
    assert ranks.waited == [0.3]


def test_output_goes_to_the_log(ranks: Ranks) -> None:
    def target(me: Rank) -> None:
        print(f"hello from {me.rank}")
        os.system("echo from a child >&2")

    ranks.run(2, target)
    log = (ranks.folder / "rank1.log").read_text()
    assert "hello from 1" in log
    assert "from a child" in log
