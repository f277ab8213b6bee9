"""Finds hangs: ranks that wait for each other for ever, and ranks that would on other hardware.

The rule is that of NCCL's documentation: each rank of a communicator makes the same calls with the same counts in the
same order ("Collective Operations"), and ranks that use several communicators issue their operations in the same order
on all of them ("Using multiple NCCL communicators concurrently"). Everything is read from the traces.
"""
