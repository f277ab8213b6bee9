"""Tests of several ranks that hang, or may hang elsewhere: the report says what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession

pytest_plugins = ["tests.fuzz.gpu_sessions"]


def test_a_hang_and_an_order_that_may_hang_fail(gpu: GpuSession) -> None:
    gpu.file(
        """
        import torch.distributed as dist

        @pytest.mark.stream_race(ranks=2, examples=1)
        def test_uneven():
            x = torch.ones(4, device="cuda")
            for batch in range(3 - dist.get_rank()):
                dist.all_reduce(x)
            torch.cuda.synchronize()

        @pytest.mark.stream_race(ranks=2, examples=1)
        def test_order():
            groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
            values = [torch.ones(4, device="cuda"), torch.ones(4, device="cuda")]
            order = (0, 1) if dist.get_rank() == 0 else (1, 0)
            for work in [dist.all_reduce(values[at], group=groups[at], async_op=True) for at in order]:
                work.wait()
            return values[0]
        """
    )
    said = gpu.run(failed=2)
    assert "rank 0 waits for rank 1 in all_reduce (SUM) of 4 float32" in said
    assert "may hang: ranks issue their collectives in different order" in said
    assert "rank 1 issues all_reduce (SUM) of 4 float32" in said
