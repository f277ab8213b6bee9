"""Describes the machine of a published row: its profile, with the row's own GPU, network and attention."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from streamrace.device.hardware import Profile, load_profile
from streamrace.device.hardware.facts import fact

FILE = Path(__file__).with_name("throughput.toml")
HOST = "epyc-7003"
Row = Any  # of DataFrame.itertuples
Figures = dict[str, float]


class ChangedMachine(NamedTuple):
    """A change of a row's machine. ``network``: part of its rate between nodes; ``host``: how many times as long the
    host takes, 0: the profile's plain launches, and no price of Python.
    """

    network: float = 1.0
    host: float = 1.0

    @property
    def slow(self) -> dict[str, float]:
        return {"host": self.host} if self.host > 1 else {}


AS_STATED = ChangedMachine()


@cache
def machines() -> dict[str, Any]:
    """Return the contents of ``throughput.toml``."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def network_of(row: Row) -> str:
    """Return the name of the row's network in ``throughput.toml``."""
    return f"not stated, {machines()['gpus'][row.gpu]['profile']}" if pd.isna(row.interconnect) else row.interconnect


def profile_of(row: Row, network: float = 1.0) -> Profile:
    """Return the row's machine, without a price of the host. ``network``: part of the rate between nodes."""
    gpu, cards = machines()["gpus"][row.gpu], machines()["networks"][network_of(row)]
    profile = load_profile(gpu["profile"])
    assert profile.network is not None
    return replace(
        profile,
        **{name: value for name, value in gpu.items() if name.startswith("memory")},
        description=f"{row.gpu}, {network_of(row)}",
        inter_node_gbits_per_s=cards["gbits"] * network,
        gpus_per_node=row.gpus_per_node,
        network=replace(profile.network, nics=cards["nics"], wire=cards["wire"]),
        **_attention(row, str(profile.gpu)),
    )


def _attention(row: Row, gpu: str) -> dict[str, Any]:
    """Return the rates of FlashAttention's first version, if the row's release had that."""
    if row.source_id not in machines()["first_attention"]["sources"]:
        return {}
    first, second, here = (
        {way: fact(f"kernels.{name}.attention_{way}") for way in ("forward", "backward")}
        for name in ("v100", "a100", gpu)
    )
    return {
        "attention_fraction": here["forward"] * first["forward"] / second["forward"],
        "attention_backward_fraction": here["backward"] * first["backward"] / second["backward"],
    }
