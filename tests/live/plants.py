"""What can go wrong in training, planted in a job of :mod:`tests.live.training`, on the rank that it befalls."""

from __future__ import annotations

from typing import Any

import torch

from tests.live.training import Job

VICTIM = "blocks.1.up.weight"


def bad_batch(job: Job) -> None:
    job.batch["features"][0, 1] = torch.nan


def ignored_labels(job: Job) -> None:
    job.batch["labels"][:] = -100


def overflow(job: Job) -> None:
    job.model.plant = "overflow"


def infinite_gradient(job: Job) -> None:
    job.model.plant = "inf gradient"


def exploding_gradient(job: Job) -> None:
    job.model.plant = "large gradient"


def optimizer_state(job: Job) -> None:
    """NaN in one number of Adam's first moment, on one rank."""
    if job.engine is None:
        job.optimizer.state[job.parameter(VICTIM)]["exp_avg"][3, 3] = torch.nan
        return
    optimizer = job.engine.optimizer
    if job.form in ("zero3", "hpz"):
        group, offset, _ = optimizer.grad_position[job.parameter(VICTIM).ds_id]
        flat = optimizer.fp32_partitioned_groups_flat[group]
    else:
        flat, offset = optimizer.single_partition_of_fp32_groups[0], 0
    optimizer.optimizer.state[flat]["exp_avg"][offset + 3] = torch.nan


def one_element(job: Job) -> None:
    """Finite, and wrong: one element of one shard on one rank."""
    parameter = job.parameter(VICTIM)
    getattr(parameter, "ds_tensor", parameter).data.view(-1)[7] += 0.01


def one_element_of_the_secondary(job: Job) -> None:
    """The same between forward and backward pass, where the secondary partition is what is read next."""
    parameter = job.parameter(VICTIM)

    def change(*_: Any) -> None:
        parameter.ds_secondary_tensor.data[5] += 0.5
        handle.remove()

    handle = job.model.blocks[2].register_forward_hook(change)


def one_element_while_gathered(job: Job) -> None:
    """After the all-gather, in what this rank computes with."""
    module = job.model.blocks[1].up

    def change(_: Any, args: Any) -> None:
        module.weight.data.view(-1)[-1] += 0.5
        handle.remove()

    handle = module.register_forward_pre_hook(change)


def kept_secondary(job: Job) -> None:
    """Stale: secondary partitions are kept over optimizer steps and not written again (DeepSpeed 0.10.3, #4288)."""
    kept = [(parameter, parameter.ds_secondary_tensor) for parameter in job.model.parameters()]
    step = job.engine.step

    def step_and_keep() -> None:
        step()
        for parameter, secondary in kept:
            parameter.ds_secondary_tensor = secondary

    job.engine.step = step_and_keep


def short_copy(job: Job) -> None:
    """Uncovered: the copy into the secondary partition leaves its end as it was: NaN, as fresh memory may be."""
    _short_copy(torch.nan)


def short_copy_over_zeros(job: Job) -> None:
    """The same where the memory was zeroed first, as DeepSpeed does since 0.19.5: finite, and wrong."""
    _short_copy(0.0)


def _short_copy(left: float) -> None:
    from deepspeed.runtime.zero.partition_parameters import Init

    copy = Init._partition_param_sec

    def copy_less(self: Any, parameter: Any, *args: Any, **kwargs: Any) -> None:
        fresh = parameter.ds_secondary_tensor is None
        copy(self, parameter, *args, **kwargs)
        if fresh and parameter.ds_secondary_tensor is not None:
            parameter.ds_secondary_tensor[-3:] = left

    Init._partition_param_sec = copy_less
