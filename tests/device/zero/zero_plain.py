"""A process without the simulated GPU, in which :mod:`zero_script` runs on the CPU with gloo: what shall come out.

``zero_plain.py RANKS FOLDER CONFIG [CONFIG ...]`` writes ``FOLDER/NUMBER/rankN.json`` for each configuration.
DeepSpeed's extensions have the same stand-ins as on the simulated GPU. The ranks are forked: one import for all.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}

import deepspeed
import deepspeed.ops.op_builder
import torch
import torch._inductor.compile_fx
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.ops.op_builder.quantizer import QuantizerBuilder

from streamrace.device.ranks.ports import free_port
from streamrace.frameworks.deepspeed import builders


class Plain(CPU_Accelerator):
    """DeepSpeed's own, without the collective that it compiles for half a minute, and with the quantizer it lacks."""

    def get_op_builder(self, class_name: str) -> object:
        if class_name == "QuantizerBuilder":
            return QuantizerBuilder
        return None if class_name == "ShareMemCommBuilder" else super().get_op_builder(class_name)

    def device_count(self) -> int:
        return int(os.environ["LOCAL_SIZE"])

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.half, torch.bfloat16]


def rank(number: int, world: int, port: int, config: str, folder: Path) -> None:
    status = 1
    try:
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_PORT": str(port)}
        os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
        sys.argv = ["zero_script.py", config, str(folder)]
        runpy.run_path(str(Path(__file__).with_name("zero_script.py")), run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def main(world: int, folder: Path, configs: list[str]) -> None:
    set_accelerator(Plain())
    torch.set_num_threads(1)
    deepspeed.ops.op_builder.QuantizerBuilder = QuantizerBuilder
    known = {name: get_accelerator().get_op_builder(name) for name in builders.STAND_INS if "Fused" not in name}
    fused = get_accelerator().get_op_builder("FusedAdamBuilder")
    builders.replace({**known, "FusedAdamBuilder": fused, "QuantizerBuilder": QuantizerBuilder})
    for at, config in enumerate(configs):
        place = folder / str(at)
        place.mkdir(parents=True)
        port = free_port()
        children = []
        for number in range(world):
            children.append(os.fork())
            if children[-1] == 0:
                rank(number, world, port, config, place)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if any(statuses):
            raise SystemExit(f"a rank failed: {config}")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
