"""What an engine of DeepSpeed imports only when it is made, imported once for all tests here."""

import functools
import importlib

import cpuinfo

for _module in (
    "deepspeed.comm.mori",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.muon.original_muon",
    "streamrace.frameworks.deepspeed.arithmetic",
    "streamrace.frameworks.deepspeed.secondary_reads",
    "streamrace.frameworks.deepspeed.fused_optimizers",
    "streamrace.frameworks.deepspeed.host_optimizers",
    "streamrace.frameworks.deepspeed.quantizer",
    "torch._subclasses.schema_check_mode",
):
    importlib.import_module(_module)

# DeepSpeed's own Adam asks for the processor's vendor, by a process that takes a second.
cpuinfo.get_cpu_info = functools.partial(dict, cpuinfo.get_cpu_info())
