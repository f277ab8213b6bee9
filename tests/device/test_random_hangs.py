"""Random programs of two to four ranks in one to three groups: the verdict is that of a plain model of rendezvous.

The model knows what a rank has issued, what of it must be done before what, and that a collective is done when all its
members have arrived. It says which ranks hang, and who may wait for whom; and, of programs that end, whether they would
if each GPU ran its collectives one at a time in the order of issue, by trying all orders in which they could take
place.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from streamrace.detectors import Hang, MayHang
from streamrace.detectors.files import records_of
from streamrace.detectors.hang.detector import Hangs
from streamrace.device import collectives
from streamrace.device.ranks import processes
from streamrace.device.tracing import Tracer
from streamrace.trace.files import TraceWriter, file_of
from tests.examples import examples, seed

PROGRAMS = 500


@dataclass(frozen=True)
class Call:
    """A collective of ``elements`` in a group; ``apart``: asynchronous, on the group's own stream."""

    group: int
    kind: str
    elements: int
    apart: bool


SYNC = "sync"  # the host waits for all its work
Program = list[list["Call | str"]]  # by rank


@dataclass(frozen=True)
class Job:
    groups: list[tuple[int, ...]]
    ranks: Program


def drawn(draw: random.Random) -> Job:
    """Draw a program that all ranks have in common, then change it on some of them."""
    world = draw.choice([2, 2, 3, 4])
    groups = [tuple(range(world))]
    for _ in range(draw.choice([0, 1, 2, 2])):
        groups.append(tuple(sorted(draw.sample(range(world), draw.randint(2, world)))))
    common: list[Call | str] = []
    for _ in range(draw.randint(2, 5)):
        group = draw.randrange(len(groups))
        common.append(Call(group, draw.choice(["all_reduce", "all_reduce", "broadcast"]), 4, draw.random() < 0.7))
        if draw.random() < 0.3:
            common.append(SYNC)
    ranks = [[op for op in common if op == SYNC or rank in groups[op.group]] for rank in range(world)]  # type: ignore[union-attr]
    for _ in range(draw.choice([0, 1, 1, 2])):
        own = draw.choice(ranks)
        calls = [at for at, op in enumerate(own) if op != SYNC]
        match draw.choice(["swap", "swap", "swap", "drop", "kind", "size", "sync"]):
            case "swap" if len(calls) > 1:
                at, other = sorted(draw.sample(calls, 2))
                own[at], own[other] = own[other], own[at]
            case "drop" if calls:
                del own[draw.choice(calls)]
            case "kind" if calls:
                at = draw.choice(calls)
                was = own[at]
                assert isinstance(was, Call)
                own[at] = Call(was.group, "broadcast" if was.kind == "all_reduce" else "all_reduce", 4, was.apart)
            case "size" if calls:
                at = draw.choice(calls)
                was = own[at]
                assert isinstance(was, Call)
                own[at] = Call(was.group, was.kind, 8, was.apart)
            case "sync":
                own.insert(draw.randint(0, len(own)), SYNC)
    return Job(groups, ranks)


# -- the device ----------------------------------------------------------------------------------------------


def plays(job: Job, folder: Path) -> list[Hang | MayHang]:
    """Run the program, and judge its traces."""
    world = len(job.ranks)
    folder.mkdir()

    def target(rank: int) -> None:
        torch.set_num_threads(1)
        writer = TraceWriter(file_of(folder, rank), rank=rank, world=world, info={})
        tracer = Tracer(writer.write, skipped=("test_random_hangs.py",))
        torch.cuda.set_device(rank)
        done = True
        try:
            store = dist.FileStore(str(folder / "store"), world)  # a rank may end at once, which others still meet
            dist.init_process_group("nccl", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
            groups = [None, *(dist.new_group(list(ranks)) for ranks in job.groups[1:])]
            for op in job.ranks[rank]:
                if isinstance(op, str):
                    torch.cuda.synchronize()
                    continue
                tensor = torch.ones(op.elements, device="cuda")
                if op.kind == "broadcast":
                    dist.broadcast(tensor, job.groups[op.group][0], group=groups[op.group], async_op=op.apart)
                else:
                    dist.all_reduce(tensor, group=groups[op.group], async_op=op.apart)
            torch.cuda.synchronize()
        except RuntimeError as error:
            if not str(error).startswith("streamrace: "):
                raise
            done = False
        collectives.leave(done=done)
        tracer.close(done=done)
        writer.close()

    processes.run(range(world), target)
    detector = Hangs()
    for rank, records in records_of(folder).items():
        detector.feed(rank, records)
    detector.finish()
    return detector.findings()


# -- the model -----------------------------------------------------------------------------------------------

Key = tuple[int, int]  # group, number


@dataclass
class Issued:
    call: Call
    key: Key
    before: list[Key]
    arrived: bool = False


@dataclass
class RankModel:
    ops: list[Call | str]
    at: int = 0
    issued: dict[Key, Issued] = field(default_factory=dict)
    current: Key | None = None  # the tail of the current stream
    tails: dict[int, Key] = field(default_factory=dict)  # of the groups' streams
    last: dict[int, Key] = field(default_factory=dict)  # of the communicators
    numbers: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class Model:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks = [RankModel([*ops, SYNC]) for ops in job.ranks]
        self.done: set[Key] = set()
        while any([self.steps(rank) for rank in self.ranks] + [self.completes()]):
            pass

    def steps(self, rank: RankModel) -> bool:
        """Go on with the rank's host as far as it can."""
        moved = False
        while rank.at < len(rank.ops):
            op = rank.ops[rank.at]
            if isinstance(op, str):
                if not rank.issued.keys() <= self.done:
                    break
            else:
                rank.numbers[op.group] += 1
                key = op.group, rank.numbers[op.group]
                before = [rank.current, rank.last.get(op.group), rank.tails.get(op.group) if op.apart else None]
                rank.issued[key] = Issued(op, key, [one for one in before if one is not None])
                rank.last[op.group] = key
                if op.apart:
                    rank.tails[op.group] = key
                else:
                    rank.current = key
            rank.at += 1
            moved = True
        for one in rank.issued.values():
            if not one.arrived and all(key in self.done for key in one.before):
                one.arrived = moved = True
        return moved

    def completes(self) -> bool:
        before = len(self.done)
        for rank in self.ranks:
            for key, one in rank.issued.items():
                parts = [self.ranks[member].issued.get(key) for member in self.job.groups[key[0]]]
                if all(part is not None and part.arrived for part in parts) and not self.differs(key):
                    self.done.add(key)
                assert one.key == key
        return len(self.done) > before

    def differs(self, key: Key) -> bool:
        calls = {
            (part.call.kind, part.call.elements)
            for member in self.job.groups[key[0]]
            if (part := self.ranks[member].issued.get(key))
        }
        return len(calls) > 1

    def ended(self, rank: int) -> bool:
        return self.ranks[rank].at == len(self.ranks[rank].ops)

    @property
    def hangs(self) -> bool:
        return not all(map(self.ended, range(len(self.ranks))))

    def reasons(self) -> set[tuple[str, int, int]]:
        """All pairs of ranks that a report may name, with the kind of the hang."""
        found: set[tuple[str, int, int]] = set()
        for rank, state in enumerate(self.ranks):
            for key, one in state.issued.items():
                if key in self.done:
                    continue
                for other in self.job.groups[key[0]]:
                    theirs = self.ranks[other].issued.get(key)
                    met = theirs is not None and other != rank and (theirs.arrived or one.arrived)
                    if met and (theirs.call.kind, theirs.call.elements) != (one.call.kind, one.call.elements):
                        found.add(("mismatch", min(rank, other), max(rank, other)))
                    if one.arrived and (theirs is None or not theirs.arrived):
                        found.add(("ended" if self.ended(other) else "order", rank, other))
        return found

    def may_hang(self) -> bool:
        """Try all orders in which the collectives can take place if each GPU runs the one that it was given first."""
        queues = [[(op.group, number) for op, number in _numbered(ops)] for ops in self.job.ranks]
        seen: set[tuple[int, ...]] = set()
        states = [tuple(0 for _ in queues)]
        while states:
            state = states.pop()
            if state in seen:
                continue
            seen.add(state)
            fronts = [queue[at] if at < len(queue) else None for queue, at in zip(queues, state, strict=True)]
            ready = {key for key in fronts if key and all(fronts[rank] == key for rank in self.job.groups[key[0]])}
            if not ready and any(fronts):
                return True
            states += [tuple(at + (fronts[rank] == key) for rank, at in enumerate(state)) for key in ready]
        return False


def _numbered(ops: list[Call | str]) -> list[tuple[Call, int]]:
    numbers: dict[int, int] = defaultdict(int)
    found = []
    for op in ops:
        if isinstance(op, Call):
            numbers[op.group] += 1
            found.append((op, numbers[op.group]))
    return found


def test_the_verdict_is_that_of_the_model(tmp_path: Path) -> None:
    draw = random.Random(seed() or 1)
    seen: dict[str, int] = defaultdict(int)
    for number in range(examples(PROGRAMS).max_examples):
        job = drawn(draw)
        model = Model(job)
        found = plays(job, tmp_path / str(number))
        hangs = [one for one in found if isinstance(one, Hang)]
        assert bool(hangs) == model.hangs, (job, found, model.reasons())
        if hangs:
            (hang,) = hangs
            pair = hang.first.rank, hang.second.rank
            if hang.kind == "order":  # each waits for the other, or for one that waits for it
                assert any(reason[0] == "order" and reason[1] in pair for reason in model.reasons()), (job, hang)
            else:
                assert (hang.kind, *pair) in model.reasons(), (job, hang, model.reasons())
            seen[hang.kind] += 1
        else:
            may = any(isinstance(one, MayHang) for one in found)
            assert may == model.may_hang(), (job, found)
            seen["may hang" if may else "ends"] += 1
    assert set(seen) == {"mismatch", "ended", "order", "may hang", "ends"}, dict(seen)
    print(dict(seen))
