"""Compares the model of kernels with published measurements, row by row.

``streamrace/device/hardware/kernels/published.csv``: the measurements; microseconds. Sources: ``SOURCES`` below.
Products of Triton's and DeepBench's rows were used to fit the rates of tiles (``facts.toml`` says which figures), so
their errors are those of a fit; attention's ramp is fitted, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.device.hardware import load_profile
from streamrace.device.hardware.kernels import PUBLISHED, Kernels, Signature

PROFILES: Mapping[str, str] = {"a100": "a100-100gbps", "h100": "h100", "v100": "v100"}
SOURCES: Mapping[str, str] = {
    "triton-01": "Triton's documentation, tutorial 01-vector-add, torch's column (docs of main, commit 001d977d)",
    "triton-02": "Triton's documentation, tutorial 02-fused-softmax, torch's column",
    "triton-03": "Triton's documentation, tutorial 03-matrix-multiplication, cuBLAS' column, fp16",
    "deepbench": "baidu-research/DeepBench, results/train/DeepBench_NV_V100.xlsx: 16 bit inputs, N N, some rows",
    "fa3": "FlashAttention-3 (arXiv 2407.08608), figures 5 and 6: FlashAttention-2 on an H100 SXM5",
}
COLUMNS = {
    "gpu": "str", "kernel": "str", "shape": "str", "dtype": "str", "theirs_us": "float64", "ours_us": "float64",
    "error": "float64", "source": "str", "measured": "str",
}  # fmt: skip


def study(file: Path = PUBLISHED) -> pd.DataFrame:
    """Return one row for each measurement. ``error``: ours over theirs, less 1.

    Triton's and DeepBench's clocks include the launch. For each of the two its duration is estimated as the shortest
    reported time less the model's shortest kernel, and added to ours.
    """
    frame = pd.read_csv(file)
    models = {gpu: Kernels.of(load_profile(name)) for gpu, name in PROFILES.items()}
    by = frame["source"].str.partition("-")[0]  # the publisher
    shortest = frame.groupby(by)["us"].min()
    modelled = []
    for row, who in zip(frame.itertuples(), by, strict=True):
        kernels = models[str(row.gpu)]
        assert kernels is not None
        beside = shortest[who] - kernels.gpu.floor_ns / 1000 if who in _LAUNCHES else 0.0
        modelled.append(kernels.nanoseconds(signature(row)) / 1000 + beside)
    frame = frame.rename(columns={"us": "theirs_us"}).assign(ours_us=modelled)
    frame["measured"] = frame["source"].map(SOURCES)
    frame["error"] = frame["ours_us"] / frame["theirs_us"] - 1
    return frame[list(COLUMNS)]


_LAUNCHES = ("triton", "deepbench")


def signature(row: Any) -> Signature:
    """Return the signature of the kernel of a row."""
    sizes = tuple(int(size) for size in str(row.shape).split("x"))
    dtype, itemsize = str(row.dtype), 4 if row.dtype == "float32" else 2
    if row.kernel == "matmul":
        m, n, k = sizes
        shapes: tuple[tuple[int, ...], ...] = ((m, k), (k, n), (m, n))
        name, switches = "aten::mm", 0
    elif row.kernel == "add":
        name, shapes, switches = "aten::add", (sizes,) * 3, 0
    elif row.kernel == "softmax":
        name, shapes, switches = "aten::_softmax", (sizes,) * 2, 0
    else:
        backward = "backward" in row.kernel
        name = "aten::_scaled_dot_product_flash_attention_for_cpu" + "_backward" * backward
        shapes, switches = (sizes,) * (8 if backward else 4), int("causal" in row.kernel)
    nbytes = sum(math.prod(shape) for shape in shapes) * itemsize
    return Signature(name, nbytes, shapes, (dtype,) * len(shapes), switches)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarise by GPU, kernel and source: the number of rows, the mean absolute error, and the worst."""
    sized = frame.assign(absolute=frame["error"].abs())
    errors = sized.groupby(["gpu", "kernel", "source"], sort=False)["absolute"].agg(["size", "mean", "max"])
    return errors.rename(columns={"size": "rows", "mean": "mean_error", "max": "worst"}).reset_index()
