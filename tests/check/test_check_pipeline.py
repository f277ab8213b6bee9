"""DeepSpeed's pipeline: each stage is ahead of the other in turn, and neither may wait for what the other waits for."""

from __future__ import annotations

import pytest

from tests.check.conftest import Checking


@pytest.mark.timeout(120)
def test_a_pipeline_of_deepspeed_trains_to_its_end(check: Checking) -> None:
    """The host of one stage waited for a promise, while it held back an effect for which the other one waited."""
    check.script("""
        import os

        import deepspeed
        import torch
        from deepspeed.pipe import PipelineModule

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        batch = torch.randn(2, 16).cuda()
        deepspeed.init_distributed()
        layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)]
        model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss())
        settings = {
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        }
        engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())
        for _ in range(3):
            loss = engine.train_batch(iter([(batch, batch)] * 4))
        print("trained", float(loss) < 1.2)
    """)
    done = check("--ranks", "2", "train.py")
    assert done.status == 0, done.told + done.err
    assert "trained True" in done.out
