"""A process with the simulated GPU that forks for each session of pytest."""

from tests.fuzz.gpu_sessions import gpu, gpu_process

__all__ = ["gpu", "gpu_process"]
