"""Operators that write an argument unsaid: torch's are those of our table, and to the device they are writes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from judged import story
from samples import DTYPES, Sample, forward, in_place, operators, samples
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from streamrace.device.undeclared_writes import HIDDEN

Write = tuple[str, str]  # operator, argument


class Watch(TorchDispatchMode):
    """Compares the memory of each operator's arguments before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: set[Write] = set()
        self.called: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        named = {one.name: value for one, value in zip(schema.arguments, args, strict=False)} | kwargs
        says = {one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write}
        told = {storage.data_ptr() for name in says for storage in storages(named.get(name))}
        before = [
            (name, storage, contents(storage).clone())
            for name, value in named.items()
            for storage in storages(value)
            if storage.data_ptr() not in told
        ]
        made = func(*args, **kwargs)
        self.called.add(schema.name)
        for name, storage, was in before:
            hidden = HIDDEN.get(schema.name)
            if not torch.equal(contents(storage), was):
                self.writes.add((schema.name, name))
                assert hidden is None or not hidden.when or named[hidden.when], f"{schema.name} without {hidden.when}"
        return made


def storages(value: Any) -> Iterator[torch.UntypedStorage]:
    for one in pytree.tree_leaves(value):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided and one.device.type == "cpu":
            yield one.untyped_storage()


def contents(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def look(chosen: list[Any], *, most: int, dtypes: tuple[torch.dtype, ...]) -> set[Write]:
    with Watch() as watch:
        pass
    for op in chosen:
        for dtype in dtypes:
            for sample in samples(op, dtype, most=most) if dtype in op.dtypes else ():
                look_at(sample, watch)
    return watch.writes


def look_at(sample: Sample, watch: Watch) -> None:
    with watch:
        forward(sample, "cpu")
        if sample.op.inplace_variant:
            in_place(sample, "cpu")


def over_ranks(name: str, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """The parts of a batch norm over several ranks, which none of torch's samples calls."""
    one, counts = torch.ones_like(mean), torch.full((1,), 8.0, device=x.device)
    if name == "aten::batch_norm_gather_stats":
        torch.batch_norm_gather_stats(x, one[None], one[None], mean, variance, 0.1, 1e-5, 8)
    elif name == "aten::batch_norm_gather_stats_with_counts":
        torch.batch_norm_gather_stats_with_counts(x, one[None], one[None], mean, variance, 0.1, 1e-5, counts)
    else:
        torch.batch_norm_update_stats(x, mean, variance, 0.1)


OVER_RANKS = sorted(set(HIDDEN) - {"aten::native_batch_norm"})


def table() -> set[Write]:
    return {(name, argument) for name, hidden in HIDDEN.items() for argument in hidden.arguments}


def test_the_table_names_what_torchs_operators_write_unsaid() -> None:
    chosen = [op for op in operators() if "_norm" in op.name or zlib.crc32(op.name.encode()) % 12 == 0]
    found = look(chosen, most=4, dtypes=DTYPES[:1])
    for name in OVER_RANKS:
        with Watch() as watch:
            over_ranks(name, torch.rand(8, 4), torch.zeros(4), torch.ones(4))
        found |= watch.writes
    assert found == table()


@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(8))
def test_of_all_operators_the_table_names_what_is_written_unsaid(number: int) -> None:
    chosen = [op for op in operators() if zlib.crc32(op.name.encode()) % 8 == number]
    assert look(chosen, most=1 << 30, dtypes=DTYPES) <= table()


def test_a_write_that_its_schema_hides_is_an_access() -> None:
    """Each operator of the table, in a race that only its hidden write makes."""
    for name in OVER_RANKS:
        with story() as told:
            ones, both = torch.ones(8, 4, device="cuda"), torch.ones(2, 4, device="cuda")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(side):
                over_ranks(name, ones, both[0], both[1])
            both[0].sum()
        assert (name, "aten::sum") in told.pairs
    for training in (True, False):
        with story() as told:
            ones = torch.ones(8, 4, device="cuda")
            running = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(side):
                torch.native_batch_norm(ones, None, None, *running, training, 0.1, 1e-5)
            running[0].sum()
        assert (("aten::native_batch_norm", "aten::sum") in told.pairs) == training
