"""Stock training in users' tests on the simulated GPU: loaders, optimizers, DDP and FSDP2 are as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession

pytest_plugins = ["tests.fuzz.gpu_sessions"]


def test_a_loader_that_shuffles_stays_on_the_host_and_its_batches_come_by_another_stream(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.fixture
        def model():
            return torch.nn.Linear(8, 1)

        @pytest.mark.stream_race(examples=1)
        @pytest.mark.parametrize("wait", [True, False])
        def test_train(model, wait):
            model.cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            samples = torch.utils.data.TensorDataset(torch.randn(8, 8, device="cpu"))
            loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True, pin_memory=True)
            side = torch.cuda.Stream()
            for (batch,) in loader:
                with torch.cuda.stream(side):
                    batch = batch.to("cuda", non_blocking=True)
                if wait:
                    torch.cuda.current_stream().wait_stream(side)
                batch.record_stream(torch.cuda.current_stream())
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                watch("loss", loss)
        """
    )
    told = gpu.run(passed=1, failed=1)
    assert "harmful race: stream 'default' never waits for stream 1 after cudaMemcpyAsync HtoD" in told
    assert f"{gpu.line('batch.to(')} test_train" in told and f"{gpu.line('model(batch)')} test_train" in told
    assert "loss: nan instead of " in told and "forked.py" not in told and "default.py" not in told


@pytest.mark.wide
def test_ranks_of_ddp_and_fsdp2_are_clean_under_many_timings(gpu: GpuSession) -> None:
    gpu.file(
        """
        def trained(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
            for _ in range(2):
                loss = model(torch.randn(4, 8)).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                watch("loss", loss)

        @pytest.mark.stream_race(ranks=2, examples=20)
        def test_ddp():
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
            trained(model)
            return model.module.weight

        @pytest.mark.stream_race(ranks=2, examples=20)
        def test_fsdp():
            from torch.distributed.fsdp import fully_shard

            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
            fully_shard(model[0])
            fully_shard(model[2])
            fully_shard(model)
            trained(model)
            return model[0].weight
        """
    )
    gpu.run(passed=2)
