"""Runs Triton kernels on the simulated GPU by Triton's own interpreter, if Triton is installed.

:mod:`.presence` checks that. If it is not, :mod:`.absent` stands for Triton, and a launch is refused by the name of its
kernel. Nothing of Triton is imported before the program imports it; then :mod:`.interpreted` changes its interpreter:
:mod:`.launching` turns a launch into work of the current stream, :mod:`.builder` notes what the kernel accesses
(:mod:`.memory`), :mod:`.judging` hands this on, and :mod:`.numbers`, :mod:`.reducing`, :mod:`.loops` and
:mod:`.libdevice` correct what the interpreter computes.
"""
