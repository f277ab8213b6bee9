"""Trains with a small sharded engine: parameters, gradients and optimizer state, each replicated, sharded within a
group, or over all (PaRO, arXiv 2310.06003), on streams of its own; each of its synchronisations has a name.
"""
