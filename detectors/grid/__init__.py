"""Finds races inside a kernel whose programs an interpreter runs: what one launch does to memory, element by element.

:class:`.judge.GridJudge` follows a launch, and knows neither torch nor the device. A trace has a record of each fault
(:class:`streamrace.trace.records.KernelFault`), which :class:`.faults.KernelFaults` reads.
"""
