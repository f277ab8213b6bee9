"""Shared by all tests: sums must not depend on the number of cores, DeepSpeed must not look for devices."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
