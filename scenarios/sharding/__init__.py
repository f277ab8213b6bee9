"""A small sharded training engine: parameters, gradients and optimizer state, each replicated, sharded within a
group, or over all (PaRO, arXiv 2310.06003), with streams of its own, every synchronisation of which has a name."""
