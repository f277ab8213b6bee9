"""The simulated accelerator: timeline, kernels, collectives, memory, costs. Knows torch, not DeepSpeed."""
