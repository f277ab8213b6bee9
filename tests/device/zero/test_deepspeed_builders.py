"""DeepSpeed's compiled extensions: what stands for them computes what they do, all others are refused by name."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.imports("tests.device.zero.zero_imports")


def test_every_builder_has_a_stand_in_or_refuses_by_name() -> None:
    from deepspeed.accelerator import get_accelerator

    from streamrace.frameworks.deepspeed.builders import STAND_INS

    accelerator = get_accelerator()
    accelerator.get_op_builder("")
    assert type(accelerator).__name__ == "CUDA_Accelerator" and len(accelerator.class_dict) > 20
    for name in accelerator.class_dict:
        builder = accelerator.create_op_builder(name)
        assert builder.is_compatible() == (name in STAND_INS)
        if name in STAND_INS:
            assert builder.load()
        else:
            with pytest.raises(RuntimeError, match=f"^streamrace: DeepSpeed's compiled extension .*{name}.*: "):
                builder.load()


def test_nvme_is_refused_with_what_to_do() -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    with pytest.raises(RuntimeError, match='offload to "cpu" instead of "nvme"'):
        AsyncIOBuilder().load()


def test_a_function_that_a_stand_in_lacks_is_named() -> None:
    from deepspeed.ops.op_builder import QuantizerBuilder

    with pytest.raises(AttributeError, match="'dequantize_fp32' of DeepSpeed's extension 'quantizer' has no stand-in"):
        _ = QuantizerBuilder().load().dequantize_fp32


def gradients() -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(3)
    return [torch.randn(40, generator=numbers) for _ in range(3)]


def trained(make: object, device: str) -> torch.Tensor:
    """Three steps from the same parameters by the same gradients; fp64 tells what is exact."""
    numbers = torch.Generator().manual_seed(2)
    weight = torch.nn.Parameter(torch.randn(40, generator=numbers).to(device))
    optimizer = make([weight])  # type: ignore[operator]
    for gradient in gradients():
        weight.grad = gradient.to(weight)
        optimizer.step()
    return weight.detach().cpu()


@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_of_the_device_and_of_the_host_is_torchs(decoupled: bool) -> None:
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    how = {"lr": 0.1, "weight_decay": 0.1}
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    wanted = trained(lambda parameters: kind(parameters, **how), "cpu")
    fused = trained(lambda parameters: FusedAdam(parameters, adam_w_mode=decoupled, **how), "cuda")
    host = trained(lambda parameters: DeepSpeedCPUAdam(parameters, adamw_mode=decoupled, **how), "cpu")
    torch.testing.assert_close(fused, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(host, wanted, rtol=1e-5, atol=1e-6)


def test_lion_of_the_device_and_of_the_host_is_its_formula() -> None:
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    def formula(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
        p, m = parameters[0].detach().double(), torch.zeros(40, dtype=torch.float64)
        for g in gradients():  # Chen et al., arXiv 2302.06675, algorithm 2
            p = p * (1 - 0.1 * 0.1) - 0.1 * torch.sign(0.9 * m + (1 - 0.9) * g.double())
            m = 0.99 * m + (1 - 0.99) * g.double()
        return p.float()

    numbers = torch.Generator().manual_seed(2)
    wanted = formula([torch.nn.Parameter(torch.randn(40, generator=numbers))])
    how = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}
    torch.testing.assert_close(trained(lambda p: FusedLion(p, **how), "cuda"), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained(lambda p: DeepSpeedCPULion(p, **how), "cpu"), wanted, rtol=1e-5, atol=1e-6)


def test_adagrad_of_the_host_is_torchs() -> None:
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

    wanted = trained(lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1), "cpu")
    found = trained(lambda p: DeepSpeedCPUAdagrad(p, lr=0.1, weight_decay=0.1, eps=1e-10), "cpu")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_step_back_undoes_a_step() -> None:
    from streamrace.frameworks.deepspeed import host_optimizers as host

    numbers = torch.Generator().manual_seed(5)
    tensors = [torch.randn(9, generator=numbers) for _ in range(3)] + [torch.rand(9, generator=numbers)]
    before = [one.clone() for one in tensors]
    host.create_adam(77, 0.1, 0.9, 0.99, 1e-8, 0.1, True, False)
    host.adam_update(77, 4, 0.1, 0.9, 0.99, 1e-8, 0.1, True, *tensors)
    assert not torch.equal(tensors[0], before[0])
    host.adam_rollback(77, 4, 0.1, 0.9, 0.99, 1e-8, 0.1, True, *tensors)
    for one, other in zip(tensors, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_fused_kernels_are_one_launch_each_with_their_accesses() -> None:
    from deepspeed.ops.op_builder import FusedAdamBuilder, QuantizerBuilder
    from judged import story

    def ones(count: int = 2) -> list[torch.Tensor]:
        return [torch.ones(64, device="cuda") for _ in range(count)]

    lists = [ones(), ones(), ones(), ones()]
    values = -torch.ones(8, 64, device="cuda", dtype=torch.half)  # -1 has a number in int8, 1 is clamped
    with story() as told:
        FusedAdamBuilder().load().multi_tensor_adam(65536, ones(1)[0], lists, 0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
        quantizer = QuantizerBuilder().load()
        packed, scales = quantizer.quantize(values, 8, 8, quantizer.Symmetric)
        again = quantizer.dequantize(packed, scales, 8, 8, quantizer.Symmetric)
    launches = {launch.kernel: launch for launch in told.launches if "stream_races" in launch.kernel}
    adam = launches["stream_races_optimizers::multi_tensor_adam"]
    assert (len(adam.reads), len(adam.writes)) == (2, 6)
    assert [(len(one.reads), len(one.writes)) for one in launches.values()][1:] == [(1, 2), (2, 1)]
    assert torch.equal(again.cpu(), values.cpu()) and told.races == []


def test_tensors_that_the_kernel_would_read_wrongly_are_refused() -> None:
    from deepspeed.ops.op_builder import FusedAdamBuilder

    adam = FusedAdamBuilder().load().multi_tensor_adam
    flag, p = torch.zeros(1, device="cuda"), torch.ones(8, device="cuda")
    for wrong in (p.half(), torch.ones(16, device="cuda")[::2], torch.ones(8)):
        with pytest.raises(ValueError, match="reads all tensors as dense ones of torch.float32"):
            adam(65536, flag, [[p], [p], [p], [wrong]], 0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
    with pytest.raises(ValueError, match="are of one size"):
        adam(65536, flag, [[p], [p], [p], [p[:4]]], 0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
