"""Trains with a small sharded engine: model states are replicated, or sharded within a group or over all (PaRO)."""
