"""A simulated GPU for a CPU build of torch: a device ``cuda`` whose memory is the host's.

Work is issued by the host and executed later, in the order of a virtual clock; every access to memory is
recorded (:mod:`repro.trace`), so that a detector can say which pairs no synchronisation orders.

``python -m simgpu script.py`` runs a script on it. The device has to be there before torch is imported
(:mod:`simgpu.launch`), and a process that has it keeps it. This package imports nothing of torch by itself.

Where it departs from the hardware, or does not see all, as far as is known:

* one device a process; CUDA graphs, IPC
  events, external streams, sparse and quantized tensors are refused by name;
* an array that ``numpy()`` made of pinned memory counts as read at that moment; what is done through it later, or
  through an address (``data_ptr()``, DLPack), is not seen (docs/memory.md says which of it the trace tells);
* work that autograd's thread issues has the call site of ``backward()``, of the main thread;
* a trace can be judged, not replayed: calls, values, labels and phases are not in it.
"""
