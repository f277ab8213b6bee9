"""A replayed collective gives the bits of gloo's.

The gloo here is torch's own: the ranks of a group are objects of this one process, which talk over the loopback device.
Inputs and outputs are copied around its calls as :mod:`streamrace.device.collectives` does it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from streamrace.replay.exchange import ReplayedExchange

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

WORLDS = [1, 2, 3, 4, 8]
SIZES = [0, 1, 2, 7, 64, 1009]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int32, torch.int64, torch.uint8, torch.bool]
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MANTISSA = {torch.float32: 23, torch.float64: 52, torch.bfloat16: 7, torch.float16: 10}
Tensors = list[list[Tensor]]  # by member
Group = list[dist.ProcessGroup]


class Case(NamedTuple):
    kernel: str
    inputs: Tensors
    outputs: Tensors
    reduction: str = ""
    root: int = -1
    splits: list[tuple[list[int], list[int]]] | None = None

    def exchange(self) -> ReplayedExchange:
        return ReplayedExchange(
            self.kernel, self.inputs, self.outputs, reduction=self.reduction, root=self.root, splits=self.splits
        )

    def tensors(self) -> list[Tensor]:
        return [tensor for member in (*self.inputs, *self.outputs) for tensor in member]


Make = Callable[[], Case]


# -- gloo -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gloo() -> Iterator[Callable[[int], Group]]:
    groups: dict[int, Group] = {}

    def of(world: int) -> Group:
        if world not in groups:
            store = dist.HashStore()
            with ThreadPoolExecutor(world) as pool:
                groups[world] = list(pool.map(lambda rank: start(store, rank, world), range(world)))
        return groups[world]

    yield of
    groups.clear()
    gc.collect()


def start(store: dist.Store, rank: int, world: int) -> dist.ProcessGroup:
    backend = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world, timedelta(seconds=20))
    group = dist.ProcessGroup(dist.PrefixStore("group", store), rank, world)
    group._set_group_name("real")
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def live(group: Group, cases: Sequence[Case]) -> None:
    """What real ranks do. All cases are under way at the same time, which costs less than one after the other."""
    running = []
    for case in cases:
        read = [[one.clone(memory_format=torch.contiguous_format) for one in member] for member in case.inputs]
        written = [[torch.empty(one.shape, dtype=one.dtype) for one in member] for member in case.outputs]
        if case.kernel in ("all_reduce", "broadcast", "reduce"):
            for outs, ins in zip(written, read, strict=True):
                outs[0].copy_(ins[0])
        works = [call(rank, me, case, read[me], written[me]) for me, rank in enumerate(group[: len(case.inputs)])]
        running.append((works, read, written))
    for case, (works, _, written) in zip(cases, running, strict=True):
        for work in works:
            work.wait()
        for outs, values in zip(case.outputs, written, strict=True):
            for out, value in zip(outs, values, strict=True):
                out.copy_(value)


def call(group: dist.ProcessGroup, me: int, case: Case, ins: list[Tensor], outs: list[Tensor]) -> Any:
    def options(kind: Any) -> Any:
        made = kind()
        if case.reduction:
            made.reduceOp = getattr(dist.ReduceOp, case.reduction)
        if case.root >= 0:
            made.rootRank = case.root
        return made

    several = len(case.inputs) > 1
    match case.kernel:
        case "all_reduce":
            return group.allreduce(outs, options(c10d.AllreduceOptions))
        case "broadcast":
            return group.broadcast(outs, options(c10d.BroadcastOptions))
        case "reduce":
            return group.reduce(outs, options(c10d.ReduceOptions))
        case "all_gather" if several and len(outs) == 1:
            return group.all_gather_single(outs[0], ins[0], options(c10d.AllgatherOptions))
        case "all_gather":
            return group.allgather([outs], ins, options(c10d.AllgatherOptions))
        case "reduce_scatter" if several:
            whole = ins[0] if len(ins) == 1 else torch.cat([one.flatten() for one in ins])
            return group.reduce_scatter_single(outs[0], whole, options(c10d.ReduceScatterOptions))
        case "reduce_scatter":
            return group.reduce_scatter(outs, [ins], options(c10d.ReduceScatterOptions))
        case "gather":
            return group.gather([outs] if outs else [], ins, options(c10d.GatherOptions))
        case "scatter":
            return group.scatter(outs, [ins] if ins else [], options(c10d.ScatterOptions))
        case "all_to_all":
            of_outputs, of_inputs = case.splits[me] if case.splits is not None else ([], [])
            return group.alltoall_base(outs[0], ins[0], of_outputs, of_inputs, options(c10d.AllToAllOptions))
        case "send_recv":
            return group.send(ins, 1, 0) if ins else group.recv(outs, 0, 0)
    raise AssertionError(case.kernel)


# -- values ---------------------------------------------------------------------------------------------


def values(dtype: torch.dtype, count: int, seed: int, *, special: bool = True, even: bool = False) -> Tensor:
    """Of very different sizes, unless ``even``. ``special``: NaN of all kinds, infinities and zeros of both signs."""
    dice = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(2, (count,), generator=dice).bool()
    if not dtype.is_floating_point:
        limit = torch.iinfo(dtype)
        return torch.randint(limit.min, limit.max, (count,), generator=dice, dtype=torch.int64).to(dtype)
    sizes = torch.randint(-12, 13, (count,), generator=dice) if not even else torch.zeros(count)
    made = ((torch.rand(count, generator=dice, dtype=torch.float64) + 0.5) * torch.exp2(sizes.double())).to(dtype)
    made *= torch.randint(2, (count,), generator=dice) * 2 - 1
    if special:
        bits = made.view(WORDS[dtype.itemsize])
        chosen = torch.rand(count, generator=dice)
        payload = torch.randint(1 << MANTISSA[dtype], (count,), generator=dice).to(bits.dtype)
        infinity = torch.full((), float("inf"), dtype=dtype).view(bits.dtype)
        sign = bits & torch.iinfo(bits.dtype).min
        for below, pattern in ((0.2, torch.zeros_like(payload)), (0.15, infinity), (0.1, infinity | payload)):
            bits.copy_(torch.where(chosen < below, pattern | sign, bits))
    return made


def given(world: int, dtype: torch.dtype, shape: tuple[int, ...], seed: int, reduction: str = "") -> list[Tensor]:
    """A tensor of each member. Where gloo leaves open which of two NaN survives, only one member has them."""
    one = reduction == "PRODUCT" or (dtype is torch.float16 and reduction in ("SUM", "AVG"))
    count = torch.Size(shape).numel()
    return [
        values(dtype, count, 1000 * seed + member, special=not one or member == 0, even=reduction == "PRODUCT").view(
            shape
        )
        for member in range(world)
    ]


def one(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(count, dtype=dtype)]


def reducing(
    kernel: str, world: int, dtype: torch.dtype, count: int, reduction: str = "SUM", *, several: bool = False
) -> Make:
    root = (world - 1) // 2 if kernel == "reduce" else -1

    def make() -> Case:
        if kernel != "reduce_scatter":
            same = [[one] for one in given(world, dtype, (count,), count, reduction)]
            return Case(kernel, same, same, reduction, root)
        if several:
            columns = [given(world, dtype, (count,), count + part, reduction) for part in range(world)]
            inputs = [[column[member] for column in columns] for member in range(world)]
        else:
            inputs = [[one] for one in given(world, dtype, (world * count,), count, reduction)]
        return Case(kernel, inputs, [[torch.zeros(count, dtype=dtype)] for _ in inputs], reduction)

    return make


def moving(world: int, dtype: torch.dtype, count: int) -> list[Make]:
    last = world - 1

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def each(*shape: int) -> Tensors:
        return [[one] for one in given(world, dtype, shape, count)]

    def many(member: int) -> list[Tensor]:
        return given(world, dtype, (count,), count + member)

    def broadcast() -> Case:
        same = each(count)
        return Case("broadcast", same, same, root=last)

    def all_gather_in_place() -> Case:
        whole = [[zeros(world * count)] for _ in range(world)]
        parts = [one.narrow(0, member * count, count) for member, (one,) in enumerate(whole)]
        for part, one in zip(parts, given(world, dtype, (count,), count), strict=True):
            part.copy_(one)
        return Case("all_gather", [[part] for part in parts], whole)

    def uneven() -> Case:
        rows = [[(sender * 3 + to * count) % 4 for to in range(world)] for sender in range(world)]
        splits = [([row[me] for row in rows], rows[me]) for me in range(world)]
        inputs = [[values(dtype, 2 * sum(ins), seed).view(-1, 2)] for seed, (_, ins) in enumerate(splits)]
        return Case("all_to_all", inputs, [[zeros(sum(outs), 2)] for outs, _ in splits], splits=splits)

    cases: list[Make] = [
        broadcast,
        all_gather_in_place,
        uneven,
        lambda: Case("all_gather", each(count), [[zeros(world * count)] for _ in range(world)]),
        lambda: Case("all_gather", each(count), [[zeros(count) for _ in range(world)] for _ in range(world)]),
        lambda: Case(
            "gather", each(count), [[zeros(count) for _ in range(world if me == last else 0)] for me in range(world)],
            root=last,
        ),
        lambda: Case(
            "scatter", [many(me) if me == last else [] for me in range(world)], [[zeros(count)] for _ in range(world)],
            root=last,
        ),
        lambda: Case("all_to_all", each(world * count), [[zeros(world * count)] for _ in range(world)]),
    ]  # fmt: skip
    if world > 1:
        cases.append(lambda: Case("send_recv", [many(0)[:1], []], [[], [zeros(count)]]))
    return cases


def compare(group: Group, makes: Sequence[Make]) -> list[Case]:
    """Every case with gloo and in a replay, in which it was run before with other values."""
    expected, cases = [make() for make in makes], [make() for make in makes]
    live(group, expected)
    for case, right in zip(cases, expected, strict=True):
        exchange = case.exchange()
        before = [one.clone() for one in case.tensors()]
        for one in case.tensors():
            one.fill_(1)
        once(exchange, len(case.inputs))
        for one, value in zip(case.tensors(), before, strict=True):
            one.copy_(value)
        once(exchange, len(case.inputs))
        for got, wanted in zip(case.tensors(), right.tensors(), strict=True):
            assert same(got, wanted), f"{case.kernel} {case.reduction} {got.dtype} {tuple(got.shape)}"
    return expected


def once(exchange: ReplayedExchange, members: int) -> None:
    for member in reversed(range(members)):
        exchange.read(member)()
    for member in range(members):
        exchange.write(member)()


def same(one: Tensor, other: Tensor) -> bool:
    word = WORDS[one.element_size()]
    return torch.equal(one.contiguous().view(word), other.contiguous().view(word))


# -- tests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_sums(world: int, gloo: Callable[[int], Group]) -> None:
    compare(
        gloo(world),
        [
            reducing(kernel, world, dtype, count, several=several)
            for kernel, several in (
                ("all_reduce", False), ("reduce", False), ("reduce_scatter", False), ("reduce_scatter", True),
            )
            for dtype in DTYPES
            for count in (SIZES if world < 8 or dtype in (torch.float32, torch.bfloat16) else (7, 64))
            if not (several and world == 8 and count > 64)
        ],
    )  # fmt: skip


@pytest.mark.parametrize("world", [1, 3, 4])
def test_other_reductions(world: int, gloo: Callable[[int], Group]) -> None:
    makes = [
        reducing(kernel, world, dtype, count, reduction)
        for kernel in ("all_reduce", "reduce")
        for dtype in DTYPES
        for reduction in ("MIN", "MAX", "PRODUCT", "AVG", "BAND", "BOR", "BXOR")
        for count in (7, 257)
        if reduction not in (("BAND", "BOR", "BXOR") if dtype in FLOATS else ("AVG",))
    ]
    makes += [reducing("reduce_scatter", world, dtype, 65, "AVG") for dtype in FLOATS]
    compare(gloo(world), makes)


@pytest.mark.parametrize("world", WORLDS)
def test_what_only_moves(world: int, gloo: Callable[[int], Group]) -> None:
    dtypes = DTYPES if world < 8 else [torch.bfloat16, torch.bool]
    compare(gloo(world), [make for dtype in dtypes for count in (0, 1, 7, 65) for make in moving(world, dtype, count)])


def test_more_than_gloo_sends_in_one_segment(gloo: Callable[[int], Group]) -> None:
    """More than 2 MiB a member: chunks of more than two segments.

    Where one member has 2**24 and the others 1, only the chunk that comes to it last counts the ones.
    """
    count = 1_672_878

    def make(kernel: str, large: int) -> Case:
        same = [[torch.full((count,), 2.0**24 if member == large else 1.0)] for member in range(3)]
        return Case(kernel, same, same, "SUM", 1 if kernel == "reduce" else -1)

    def parts(large: int) -> Case:
        return make("all_reduce", large)._replace(kernel="reduce_scatter", outputs=[one(count // 3) for _ in range(3)])

    makes: list[Make] = [partial(make, kernel, large) for kernel in ("all_reduce", "reduce") for large in (0, 1)]
    summed, _, reduced, *_ = compare(gloo(3), [*makes, partial(parts, 2)])
    assert [int((case.outputs[1][0] > 2.0**24).sum()) for case in (summed, reduced)] == [557_628, 786_432]


def test_the_order_of_sums_matters(gloo: Callable[[int], Group]) -> None:
    """Without this the other tests would prove little."""
    makes = [reducing("all_reduce", 4, dtype, 1009) for dtype in FLOATS]
    for expected, make in zip(compare(gloo(4), makes), makes, strict=True):
        first, *others = [one for (one,) in make().inputs]
        (right,) = expected.outputs[0]
        for order in (others, others[::-1]):
            naive = first.clone()
            for other in order:
                naive += other
            assert (naive != right)[~right.isnan()].sum() > 20


def test_any_layout_of_memory(gloo: Callable[[int], Group]) -> None:
    def column(*shape: int) -> Tensor:
        return torch.zeros(*shape, 3)[..., 1]

    def matrices() -> list[Tensor]:
        return [one.t() for one in given(3, torch.float32, (5, 6), 1)]

    def all_reduce() -> Case:
        inside = [[one[1:, 2:]] for one in matrices()]
        return Case("all_reduce", inside, inside, "SUM")

    def scalars() -> Case:
        alone = [[one.view(())] for one in given(3, torch.float32, (1,), 2)]
        return Case("all_reduce", alone, alone, "SUM")

    def strange_booleans() -> Case:
        odd = [[torch.tensor([0, 2, 3, 255], dtype=torch.uint8).view(torch.bool)] for _ in range(3)]
        return Case("all_reduce", odd, odd, "SUM")

    makes = [
        all_reduce,
        scalars,
        strange_booleans,
        lambda: Case("reduce_scatter", [[one] for one in matrices()], [[column(2, 5)] for _ in range(3)], "SUM"),
        lambda: Case("all_gather", [[one] for one in matrices()], [[column(18, 5)] for _ in range(3)]),
        lambda: Case("all_to_all", [[one] for one in matrices()], [[column(6, 5)] for _ in range(3)]),
        lambda: Case("send_recv", [[matrices()[0]], []], [[], [column(6, 5)]]),
    ]
    compare(gloo(3), makes)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (Case("all_sort", [one(1)], [one(1)]), "does not know the collective 'all_sort'"),
        (Case("all_reduce", [one(1)], [], "SUM"), "1 members read and 0 write"),
        (Case("all_reduce", [[]], [[]], "SUM"), "0 types instead of one"),
        (Case("all_reduce", [one(1), one(2)], [one(1), one(2)], "SUM"), "2 elements where 1 are exchanged"),
        (Case("all_reduce", [one(1), one(1)], [one(1), one(2)], "SUM"), "2 elements where 1 are exchanged"),
        (Case("all_reduce", [one(1) * 2], [one(1)], "SUM"), "member 0 has 2 inputs instead of one"),
        (Case("all_gather", [one(2), one(2)], [one(4), one(4, torch.int32)]), "2 types instead of one"),
        (Case("all_gather", [one(2), one(2)], [one(4), one(5)]), "5 elements where 4 are exchanged"),
        (Case("all_gather", [one(2), one(2)], [one(2) * 3, one(4)]), "3 outputs for 2 members"),
        (Case("reduce_scatter", [one(3), one(3)], [one(1), one(1)], "SUM"), "3 elements cannot be shared by 2"),
        (Case("reduce_scatter", [one(2) * 2, one(2)], [one(2)] * 2, "SUM"), "members give 2 and 4 elements"),
        (Case("broadcast", [one(1)], [one(1)], root=1), "root 1 is not one of the 1 members"),
        (Case("gather", [one(1), one(1)], [one(1), []], root=0), "member 0 gets 1 tensors"),
        (Case("scatter", [[], one(1) * 2], [one(1), one(1)], root=0), "member 0 gives 0 tensors"),
        (Case("send_recv", [one(1)], [one(1)]), "1 members instead of a sender and a receiver"),
        (Case("send_recv", [one(1), []], [[], one(2)]), "2 elements where 1 are exchanged"),
        (Case("all_to_all", [one(3)] * 2, [one(3)] * 2), "3 rows cannot be split into [] for 2"),
        (Case("all_to_all", [one(2)] * 2, [one(2)] * 2, splits=[([1, 1], [3, -1])] * 2), "split into [3, -1]"),
        (Case("all_to_all", [one(3)] * 2, [one(3)] * 2, splits=[([1, 2], [1, 2])] * 2), "differ in what one sends"),
        (Case("all_to_all", [one(2)] * 2, [one(2)] * 2, splits=[([1, 1], [1, 1])]), "1 members have splits"),
    ],
)
def test_members_that_do_not_agree(case: Case, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        case.exchange()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("reduction", "dtype", "says"),
    [
        ("PREMUL_SUM", torch.float32, "does not know how gloo reduces torch.float32 by 'PREMUL_SUM'"),
        ("", torch.float32, "by ''"),
        ("BAND", torch.float32, "torch.float32 by 'BAND'"),
        ("AVG", torch.int64, "does not average values of type torch.int64"),
        ("SUM", torch.complex64, "does not reduce values of type torch.complex64"),
    ],
)
def test_reductions_that_are_not_known(reduction: str, dtype: torch.dtype, says: str) -> None:
    with pytest.raises(NotImplementedError, match=says):
        Case("all_reduce", [one(1, dtype)], [one(1, dtype)], reduction).exchange()
