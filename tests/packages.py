"""The packages of the product, from the top floor down."""

from __future__ import annotations

PACKAGES = (
    "repro", "reports", "studies", "scenarios", "frameworks", "fuzz", "replay", "metrics", "detectors", "simgpu",
)  # fmt: skip
