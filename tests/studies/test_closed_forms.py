"""What dry runs measure is what the papers' formulas say, to the byte, with every term that the formulas leave out.

Bytes sent and memory, of stock DeepSpeed on two nodes of four GPUs, read from traces; the formulas are computed here
from the model's shapes and the configuration alone. Where DeepSpeed differs from the papers, the term has a name.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from streamrace.metrics import Flow
from streamrace.metrics.memory import rounded
from streamrace.scenarios import rehearsal
from streamrace.scenarios.full_size import subject
from streamrace.scenarios.job import Job
from streamrace.studies.dry_run import Rehearsed, rehearse
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Alloc, Free

NODES, GPUS = 2, 4
RANKS = NODES * GPUS
BF16, FP32 = 2, 4

EVEN = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4, "vocab_size": 1024}
ODD = {"hidden_size": 42, "intermediate_size": 101, "num_attention_heads": 3, "vocab_size": 1021}

# Each module's parameters are gathered when it needs them and released when it has run, as the papers count it.
PURE = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
SMALL_BUCKETS = {"reduce_bucket_size": 200_000, "allgather_bucket_size": 200_000}


class Matrix(NamedTuple):
    """A parameter: its shape, and whether it is trained."""

    name: str
    shape: tuple[int, ...]
    trained: bool

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def padded(self) -> int:
        """Each parameter is padded to a whole part for each rank (``_aligned_size``)."""
        return -(-self.elements // RANKS) * RANKS


class Ran(NamedTuple):
    found: Rehearsed
    parameters: tuple[Matrix, ...]
    modules: int  # that are called in a forward pass

    @property
    def last(self) -> Counter[tuple[str, str, int]]:
        """Bytes that each GPU sends in the last step, by phase, collective and size of the group."""
        sent: Counter[tuple[str, str, int]] = Counter()
        for flow in self.flows:
            sent[flow.phase, flow.kernel, flow.members] += flow.within + flow.between
        return sent

    @property
    def flows(self) -> tuple[Flow, ...]:
        return self.found.traffic.only(step=self.found.job.steps).flows

    @property
    def between(self) -> int:
        return sum(flow.between for flow in self.flows)

    @property
    def within(self) -> int:
        return sum(flow.within for flow in self.flows)


Dry = Callable[..., Ran]


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Dry:
    """``dry(zero={...}, hpz=4, ...)``: a dry run of a small Llama; the same one only once."""
    rehearsal.preload()
    folder = tmp_path_factory.mktemp("dry")
    done: dict[str, Ran] = {}

    def run(sizes: dict[str, int] = EVEN, *, zero: dict[str, Any] | None = None, **options: Any) -> Ran:
        key = json.dumps([sizes, zero, options], sort_keys=True)
        if key not in done:
            where = folder / str(len(done))
            where.mkdir()
            done[key] = _run(where, sizes, zero or {}, options)
        return done[key]

    return run


def _run(folder: Path, sizes: dict[str, int], zero: dict[str, Any], options: dict[str, Any]) -> Ran:
    model = folder / "config.json"
    model.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 1,
                "num_key_value_heads": sizes["num_attention_heads"],
                "max_position_embeddings": 128,
                "tie_word_embeddings": False,
                **sizes,
            }
        )
    )
    job = Job(**{"model": str(model), "nodes": NODES, "gpus": GPUS, "sequence": 64, "steps": 2, **options})
    config = job.deepspeed_config(sizes["hidden_size"])
    config["zero_optimization"] |= zero
    (folder / "deepspeed.json").write_text(json.dumps(config))
    with torch.device("meta"):
        made = subject(str(model)).make()
    parameters = tuple(
        Matrix(name, tuple(one.shape), not any(pattern.strip("*") in name for pattern in job.frozen))
        for name, one in made.named_parameters()
    )
    called = [module for module in made.modules() if not isinstance(module, torch.nn.ModuleList)]
    found = rehearse(job.model_copy(update={"config": str(folder / "deepspeed.json")}), folder)
    assert found.traffic.unknown == 0
    return Ran(found, parameters, len(called))


# -- the formulas -----------------------------------------------------------------------------------------


def ring(whole: int, ranks: int = RANKS) -> int:
    """What each rank sends in an all-gather or a reduce-scatter; a broadcast's mean is the same."""
    assert (ranks - 1) * whole % ranks == 0
    return (ranks - 1) * whole // ranks


def padded(parameters: Iterable[Matrix]) -> int:
    return sum(one.padded for one in parameters)


def trained(parameters: Iterable[Matrix]) -> list[Matrix]:
    return [one for one in parameters if one.trained]


def persistent(parameters: Iterable[Matrix], threshold: int = 100_000) -> list[Matrix]:
    """Those that stay gathered (``mark_persistent_parameters``): DeepSpeed's default threshold."""
    return [one for one in parameters if one.elements <= threshold]


def norm() -> int:
    """The gradients' norm: one all-reduce of a float64."""
    return 2 * (RANKS - 1) * 8 // RANKS


def blocks(elements: int) -> int:
    """How many blocks ``CUDAQuantizer.quantize`` makes: each of a multiple of 8 elements, of 8000 or fewer if it can.

    As many as it takes for 8000 each, then the next number that divides; doubled while a block is above 8000.
    """
    count = next(n for n in range(-(-elements // 8000), elements) if elements % (8 * n) == 0)
    while elements % (16 * count) == 0 and elements / count > 8000:
        count *= 2
    return count


def int8(elements: int, ranks: int) -> int:
    """qwZ's all-gather: a byte an element, and a float32 scale for each block; blocks lie within a rank's part."""
    assert elements % ranks == 0
    return elements + FP32 * ranks * blocks(elements // ranks)


def int4(one: Matrix) -> tuple[int, int]:
    """qgZ's two all-to-alls of one matrix, bytes sent within the node and between nodes.

    Half a byte an element and a float32 scale for each block, as many blocks as the longer side is long; what a node
    has added up is a ``GPUS``-th of both. Each rank keeps its own part.
    """
    count = max(*one.shape, RANKS)
    hop = one.elements // 2 + FP32 * count
    reduced = one.elements // 2 // GPUS + FP32 * (count // GPUS)
    return (GPUS - 1) * hop // GPUS, (NODES - 1) * reduced // NODES


# -- bytes sent -------------------------------------------------------------------------------------------

S = 2  # micro-batches


def test_zero3_gathers_twice_and_reduces_once_a_micro_batch(dry: Dry) -> None:
    """3 s M: forward all-gather, backward all-gather, reduce-scatter; the norm is all there is beside."""
    ran = dry(zero=PURE, accumulation=S)
    whole = BF16 * padded(ran.parameters)
    assert ran.last == {
        ("forward", "all_gather", RANKS): S * ring(whole),
        ("backward", "all_gather", RANKS): S * ring(whole),
        ("backward", "reduce_scatter", RANKS): S * ring(whole),
        ("step", "all_reduce", RANKS): norm(),
    }
    assert ran.between == 3 * S * ring(whole) + norm() and ran.within == 0


def test_padding_is_sent_too(dry: Dry) -> None:
    ran = dry(ODD, zero=PURE, accumulation=S)
    assert padded(ran.parameters) > sum(one.elements for one in ran.parameters)
    assert ran.between == 3 * S * ring(BF16 * padded(ran.parameters)) + norm()


def test_hpz_gathers_once_a_step_between_nodes(dry: Dry) -> None:
    """(s + 1) M between nodes; 2s - 1 gathers within, as the secondary copy lives until the step."""
    for sizes in (EVEN, ODD):
        ran = dry(sizes, zero=PURE, accumulation=S, hpz=GPUS)
        whole = BF16 * padded(ran.parameters)
        assert ran.last == {
            ("forward", "all_gather", RANKS): ring(whole),
            ("forward", "all_gather", GPUS): (S - 1) * ring(whole, GPUS),
            ("backward", "all_gather", GPUS): S * ring(whole, GPUS),
            ("backward", "reduce_scatter", RANKS): S * ring(whole),
            ("step", "all_reduce", RANKS): norm(),
        }
        assert ran.between == (S + 1) * ring(whole) + norm()
        assert ran.within == (2 * S - 1) * ring(whole, GPUS)


def test_qwz_gathers_a_byte_an_element_and_scales(dry: Dry) -> None:
    """In forward *and* backward: DeepSpeed quantizes every all-gather, where the paper counts the forward's."""
    ran = dry(zero=PURE, accumulation=S, qwz=True)
    gathered = sum(ring(int8(one.elements, RANKS)) for one in ran.parameters)
    reduced = ring(BF16 * padded(ran.parameters))
    assert ran.last == {
        ("forward", "all_gather", RANKS): S * gathered,
        ("backward", "all_gather", RANKS): S * gathered,
        ("backward", "reduce_scatter", RANKS): S * reduced,
        ("step", "all_reduce", RANKS): norm(),
    }
    scales = sum(FP32 * RANKS * blocks(one.elements // RANKS) for one in ran.parameters)
    assert ran.between == S * (2 * ring(padded(ran.parameters) + scales) + reduced) + norm()


def test_qgz_reduces_matrices_in_two_hops(dry: Dry) -> None:
    """Half a byte an element within the node, then a quarter of that (of 4 GPUs) between nodes. Not vectors."""
    ran = dry(zero=PURE, accumulation=S, qgz=True)
    gathered = ring(BF16 * padded(ran.parameters))
    matrices = [one for one in ran.parameters if len(one.shape) == 2]
    vectors = [one for one in ran.parameters if len(one.shape) == 1]
    within, between = (sum(hop) for hop in zip(*map(int4, matrices), strict=True))
    assert ran.last == {
        ("forward", "all_gather", RANKS): S * gathered,
        ("backward", "all_gather", RANKS): S * gathered,
        ("backward", "all_to_all", GPUS): S * within,
        ("backward", "all_to_all", NODES): S * between,
        ("backward", "reduce_scatter", RANKS): S * ring(BF16 * padded(vectors)),
        ("step", "all_reduce", RANKS): norm(),
    }
    assert ran.within == S * within
    assert ran.between == S * (2 * gathered + between + ring(BF16 * padded(vectors))) + norm()


def test_all_three_together(dry: Dry) -> None:
    ran = dry(zero=PURE, accumulation=S, hpz=GPUS, qwz=True, qgz=True)
    matrices = [one for one in ran.parameters if len(one.shape) == 2]
    vectors = [one for one in ran.parameters if len(one.shape) == 1]
    local = sum(ring(int8(one.elements, GPUS), GPUS) for one in ran.parameters)
    within, between = (sum(hop) for hop in zip(*map(int4, matrices), strict=True))
    assert ran.last == {
        ("forward", "all_gather", RANKS): sum(ring(int8(one.elements, RANKS)) for one in ran.parameters),
        ("forward", "all_gather", GPUS): (S - 1) * local,
        ("backward", "all_gather", GPUS): S * local,
        ("backward", "all_to_all", GPUS): S * within,
        ("backward", "all_to_all", NODES): S * between,
        ("backward", "reduce_scatter", RANKS): S * ring(BF16 * padded(vectors)),
        ("step", "all_reduce", RANKS): norm(),
    }


def test_what_crosses_nodes_is_the_papers_volume(dry: Dry) -> None:
    """3 s M for ZeRO-3 and (s + 1) M with hpZ, for a node's GPUs together: up to the ring's (n-1)/n."""
    for hpz, volumes in ((1, 3 * S), (GPUS, S + 1)):
        ran = dry(zero=PURE, accumulation=S, hpz=hpz)
        crossing = sum(flow.crossing for flow in ran.flows if flow.kernel != "all_reduce") * GPUS
        assert crossing == volumes * ring(BF16 * padded(ran.parameters))


# -- with DeepSpeed's defaults ----------------------------------------------------------------------------


@pytest.mark.parametrize("qwz", [False, True], ids=["bf16", "qwZ"])
def test_by_default_a_small_model_stays_gathered_until_its_backward_is_over(dry: Dry, qwz: bool) -> None:
    """Under 10^9 parameters nothing is released in forward: the backward all-gather of the formula does not take place.

    Once a micro-batch all that is not persistent is gathered, in one piece. What is persistent is gathered after each
    step, in bf16 and between nodes, whatever was asked for.
    """
    ran = dry(accumulation=S, qwz=qwz)
    kept = persistent(ran.parameters)
    others = padded(set(ran.parameters) - set(kept))
    assert 0 < len(kept) < len(ran.parameters)
    whole = int8(others, RANKS) if qwz else BF16 * others
    assert ran.last == {
        ("forward", "all_gather", RANKS): S * ring(whole),
        ("backward", "reduce_scatter", RANKS): S * ring(BF16 * padded(ran.parameters)),
        ("step", "all_gather", RANKS): ring(BF16 * padded(kept)),
        ("step", "all_reduce", RANKS): norm(),
    }


def test_by_default_hpz_has_nothing_to_read_in_the_first_micro_batch_of_a_small_model(dry: Dry) -> None:
    ran = dry(accumulation=S, hpz=GPUS)
    kept = persistent(ran.parameters)
    others = padded(set(ran.parameters) - set(kept))
    assert ran.last == {
        ("forward", "all_gather", RANKS): ring(BF16 * others),
        ("forward", "all_gather", GPUS): (S - 1) * ring(BF16 * others, GPUS),
        ("backward", "reduce_scatter", RANKS): S * ring(BF16 * padded(ran.parameters)),
        ("step", "all_gather", RANKS): ring(BF16 * padded(kept)),
        ("step", "all_reduce", RANKS): norm(),
    }


def test_deepspeed_compares_what_it_recorded_once(dry: Dry) -> None:
    """At the second forward pass: three lists of int64 and their lengths are broadcast (``reset_step``).

    The modules in the order of forward and backward (the rotary embedding has no gradient, so no backward), and for
    each parameter of each of them, twice, its number and its module's.
    """
    ran = dry(zero=PURE, accumulation=1)
    modules = ran.modules + (ran.modules - 1)
    told = 8 * (3 + modules + 2 * 2 * len(ran.parameters))
    assert ran.last["forward", "broadcast", RANKS] == ring(told)
    whole = BF16 * padded(ran.parameters)
    assert ran.between == 3 * ring(whole) + ring(told) + norm()


def test_frozen_parameters_are_not_reduced_and_their_secondary_outlives_the_step(dry: Dry) -> None:
    """``invalidate_secondary_tensor`` goes through the optimizer's parameters: frozen ones never cross nodes again."""
    ran = dry(zero=PURE, accumulation=S, hpz=GPUS, frozen=("*mlp*",))
    mine = trained(ran.parameters)
    assert 0 < len(mine) < len(ran.parameters)
    whole, fresh = BF16 * padded(ran.parameters), BF16 * padded(mine)
    assert ran.last["forward", "all_gather", RANKS] == ring(fresh)
    assert ran.last["forward", "all_gather", GPUS] == (S - 1) * ring(whole, GPUS) + ring(whole - fresh, GPUS)
    assert ran.last["backward", "reduce_scatter", RANKS] == S * ring(fresh)


@pytest.mark.parametrize(("stage", "reductions"), [(1, 1), (2, S)])
def test_zero_1_and_2_reduce_everything_to_everyone(dry: Dry, stage: int, reductions: int) -> None:
    """An all-reduce, twice a reduce-scatter's bytes (``use_multi_rank_bucket_allreduce``): at the end, or each time.

    Beside it parameters are gathered after the step; a flag (one byte) and the norm (float32) are all-reduced.
    """
    ran = dry(zero=SMALL_BUCKETS, stage=stage, accumulation=S)
    elements = sum(one.elements for one in ran.parameters)
    assert elements % (2 * RANKS) == 0
    assert ran.last == {
        ("backward", "all_reduce", RANKS): reductions * 2 * ring(BF16 * elements),
        ("step", "all_reduce", RANKS): 2 * (RANKS - 1) * (1 + FP32) // RANKS,
        ("step", "all_gather", RANKS): ring(BF16 * elements),
    }


# -- memory -----------------------------------------------------------------------------------------------


def state(elements: int, groups: int = 1) -> dict[str, int]:
    """Of so many trained elements on this rank: fp32 copy, two moments, and a step counter for each group."""
    return {"master": FP32 * elements, "optimizer": 2 * FP32 * elements + FP32 * groups}


def kinds(ran: Ran) -> dict[str, int]:
    peaks = ran.found.memory.kind_peaks
    return {kind: peaks.get(kind, 0) for kind in ("primary", "secondary", "gradient", "master", "optimizer")}


@pytest.mark.parametrize(
    ("sizes", "hpz"),
    [(EVEN, 1), (EVEN, 2), (EVEN, GPUS), (ODD, 1), (ODD, GPUS)],
    ids=["ZeRO-3", "hpZ 2", "hpZ 4", "padded ZeRO-3", "padded hpZ 4"],
)
def test_memory_of_zero3_and_hpz(dry: Dry, sizes: dict[str, int], hpz: int) -> None:
    """2 P/n bytes of parameters, 2 P/g of their secondary copy, 2 P/n of gradients, 12 P/n of optimizer state."""
    ran = dry(sizes, zero=PURE, accumulation=S, hpz=hpz)
    whole = padded(ran.parameters)
    assert kinds(ran) == {
        "primary": BF16 * whole // RANKS,
        "secondary": BF16 * whole // hpz if hpz > 1 else 0,
        "gradient": BF16 * whole // RANKS,
        **state(whole // RANKS),
    }


@pytest.mark.parametrize("qwz", [False, True])
def test_the_secondary_copy_is_bf16_with_qwz_too(dry: Dry, qwz: bool) -> None:
    """``_partition_param_sec`` stores the parameter's dtype; qwZ quantizes what is sent, each time anew."""
    ran = dry(zero=PURE, accumulation=S, hpz=GPUS, qwz=qwz, qgz=qwz)
    assert kinds(ran)["secondary"] == BF16 * padded(ran.parameters) // GPUS


def test_only_what_is_trained_has_gradients_and_optimizer_state(dry: Dry) -> None:
    ran = dry(zero=PURE, accumulation=S, hpz=GPUS, frozen=("*mlp*",))
    whole, mine = padded(ran.parameters), padded(trained(ran.parameters))
    assert kinds(ran) == {
        "primary": BF16 * whole // RANKS,
        "secondary": BF16 * whole // GPUS,
        "gradient": BF16 * mine // RANKS,
        **state(mine // RANKS),
    }


def test_fp32_training_keeps_its_parameters_twice(dry: Dry) -> None:
    """The fp32 copy is made though the parameters are fp32 already."""
    ran = dry(zero=PURE, hpz=GPUS, precision="fp32")
    whole = padded(ran.parameters)
    assert kinds(ran) == {
        "primary": FP32 * whole // RANKS,
        "secondary": FP32 * whole // GPUS,
        "gradient": FP32 * whole // RANKS,
        **state(whole // RANKS),
    }


@pytest.mark.parametrize("sizes", [EVEN, ODD], ids=["even", "padded"])
@pytest.mark.parametrize("frozen", [(), ("*mlp*",)], ids=["all trained", "some frozen"])
@pytest.mark.parametrize("stage", [1, 2])
def test_memory_of_zero_1_and_2(dry: Dry, stage: int, frozen: tuple[str, ...], sizes: dict[str, int]) -> None:
    """Whole parameters; their flat group is padded to two elements a rank. 12 P'/n of optimizer state.

    Gradients are not cut to the partition: those of a parameter that begins in it are kept whole (rank 0's partition
    begins where the first parameter does); ZeRO-1 keeps them all until the last micro-batch.
    """
    ran = dry(sizes, zero=SMALL_BUCKETS, stage=stage, accumulation=S, frozen=frozen)
    mine = [one.elements for one in trained(ran.parameters)]
    flat = -(-sum(mine) // (2 * RANKS)) * 2 * RANKS
    untrained = sum(one.elements for one in ran.parameters if not one.trained)
    begun = [count for at, count in enumerate(mine) if sum(mine[:at]) < flat // RANKS]
    assert kinds(ran) == {
        "primary": BF16 * (flat + untrained),
        "secondary": 0,
        "gradient": BF16 * sum(mine if stage == 1 else begun),
        **state(flat // RANKS),
    }


@pytest.mark.parametrize(
    "options",
    [
        {"zero": PURE, "accumulation": S},
        {"zero": PURE, "accumulation": S, "hpz": GPUS, "qwz": True, "qgz": True},
        {"accumulation": S, "hpz": GPUS},
        {"zero": SMALL_BUCKETS, "accumulation": S, "stage": 2},
    ],
    ids=["ZeRO-3", "ZeRO++", "hpZ by default", "ZeRO-2"],
)
def test_the_peak_is_what_allocations_and_frees_add_up_to(dry: Dry, options: dict[str, Any]) -> None:
    ran = dry(**options)
    memory = ran.found.memory
    held: dict[int, int] = {}
    peaks = [0, 0]
    at = None
    reader = TraceReader(ran.found.trace)
    for number, record in enumerate(reader.read()):
        if isinstance(record, Alloc) and record.stream >= 0:
            held[record.block] = record.nbytes
            total = sum(rounded(nbytes) for nbytes in held.values())
            if total > peaks[0]:
                peaks[0], at = total, (record.time, number)
            peaks[1] = max(peaks[1], sum(held.values()))
        elif isinstance(record, Free):
            held.pop(record.block, None)
    reader.close()
    assert memory.moment is not None
    assert (memory.peak, memory.exact_peak) == tuple(peaks)
    assert (memory.moment.time, memory.moment.record) == at
    assert sum(memory.kinds.values()) == memory.peak
    assert memory.alive == sum(rounded(nbytes) for nbytes in held.values())
