"""What an old DeepSpeed release asks of torch's CUDA build, and gets from the one that is there."""

from __future__ import annotations

from typing import Any

import torch

from streamrace.frameworks.deepspeed import old_releases


class Old:
    """An accelerator as up to 0.13.3."""

    @property
    def FloatTensor(self) -> Any:  # noqa: N802
        return torch.cuda.FloatTensor

    @property
    def IntTensor(self) -> Any:  # noqa: N802
        return "its own"

    @property
    def ByteTensor(self) -> Any:  # noqa: N802
        return torch.cuda.ByteTensor


def test_the_constructors_that_only_a_cuda_build_has_are_those_of_later_releases() -> None:
    assert old_releases.constructors(Old) == ["ByteTensor", "FloatTensor"]
    made = Old().FloatTensor
    assert (made.func, made.keywords) == (torch.tensor, {"dtype": torch.float, "device": "cuda"})
    assert Old().ByteTensor.keywords["dtype"] == torch.uint8 and Old().IntTensor == "its own"
    assert old_releases.constructors(Old) == []
