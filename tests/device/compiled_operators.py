"""Calls torch's operators as inductor compiles them and as they are, on one device, and prints those that differ.

A program for ``streamrace device --compile inductor``: ``compiled_operators.py PART PARTS``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.device.samples import Raised, Sample, name_of, operators, outcome, samples

# As in torch's own test of inductor's operators (test/inductor/test_torchinductor_opinfo.py): inductor draws other
# numbers, and of uninitialised memory there is nothing to compare.
_OTHER_VALUES = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric",
    "log_normal", "multinomial", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "normal", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "uniform", "nn.functional.multi_head_attention_forward", "svd_lowrank", "pca_lowrank",
}  # fmt: skip


def main(part: int, parts: int) -> None:
    warnings.simplefilter("ignore")
    count = 0
    for number, op in enumerate(operators()):
        if number % parts != part or op.name in _OTHER_VALUES or op.name.startswith(("sparse", "masked", "jiterator")):
            continue
        for sample in samples(op, torch.float32, most=1) if torch.float32 in op.dtypes else ():
            torch._dynamo.reset()
            plain, compiled = (outcome(partial(_results, sample, by)) for by in (lambda call: call, torch.compile))
            count += 1
            if isinstance(plain, Raised):
                continue
            if isinstance(compiled, Raised):
                print(f"{name_of(op)}: {' '.join(compiled.sentence.split())[:300]}", flush=True)
                continue
            try:
                torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4, equal_nan=True)
            except AssertionError as error:
                print(f"{name_of(op)}: {' '.join(str(error).split())[:300]}", flush=True)
    print("compared", count, flush=True)


def _results(sample: Sample, by: Callable[[Any], Any]) -> list[Any]:
    """Return the tensors of a call, and the gradients of its arguments."""
    arguments, keywords = sample.on("cuda")

    def call(*arguments: Any) -> Any:
        return sample.op.op(*arguments, **keywords)

    made = [one for one in pytree.tree_leaves(by(call)(*arguments)) if isinstance(one, torch.Tensor)]
    wanted = [one for one in pytree.tree_leaves((arguments, keywords)) if getattr(one, "requires_grad", False)]
    sums = [one.sum() for one in made if one.requires_grad and one.is_floating_point()]
    gradients = torch.autograd.grad(sum(sums), wanted, allow_unused=True) if sums and wanted else ()
    return [*(one.detach() for one in made), *gradients]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
