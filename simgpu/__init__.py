"""A simulated GPU for a CPU build of torch: a device ``cuda`` whose memory is the host's.

Work is issued by the host and executed later, in the order of a virtual clock; every access to memory is
recorded (:mod:`simgpu.trace`), so that a detector can say which pairs no synchronisation orders.

``python -m simgpu script.py`` runs a script on it. The device has to be there before torch is imported
(:mod:`simgpu.launch`), and a process that has it keeps it. This package imports nothing of torch by itself.

Where it departs from the hardware, or does not see all, as far as is known:

* one device a process; what cannot be simulated is refused by name (:mod:`simgpu.refusals`, :mod:`simgpu.imports`), as
  are sparse and quantized tensors; ``torch.compile`` and TorchScript run operator by operator, the first says so;
* a C++ extension that takes a tensor's address and works on it past torch's operators is not seen;
* an array that ``numpy()`` made of pinned memory counts as read at that moment; what is done through it later, or
  through an address (``data_ptr()``, DLPack), is not seen (docs/memory.md says which of it the trace records);
* what a run came to see (:mod:`simgpu.probes`), by which a race is called harmful or benign, is what the host read and
  what work wrote into the memory that is alive when the last kernel has been given: a value that is used in between
  and leaves no trace in either is not compared;
* backward work has the line of its forward work, marked ``(backward)``; where that is not known (gradients summed into
  parameters, in-place operators on views) it has the line where the main thread stands, which is that of ``backward()``
  unless another thread called it;
* a trace can be executed again (:mod:`replay`) where it was recorded for that; docs/recordings.md says what is
  refused.
"""
