"""A simulated GPU for a CPU build of torch: a device ``cuda`` whose memory is the host's.

Work is issued by the host and executed later, in the order of a virtual clock; every access to memory is
recorded (:mod:`streamrace.trace`), so that a detector can say which pairs no synchronisation orders.

``streamrace device script.py`` runs a script on it. The device has to be there before torch is imported
(:mod:`streamrace.device.launch`), and a process that has it keeps it. This package imports nothing of torch by itself.

Where it departs from the hardware, and what it does not see, is written in ``docs/concepts/departures.md``.
"""
