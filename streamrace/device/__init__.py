"""A simulated GPU for a CPU build of torch: a device ``cuda`` whose memory is the host's.

Work is issued by the host and executed later, in the order of a virtual clock; every access to memory is
recorded (:mod:`streamrace.trace`), so that a detector can say which pairs no synchronisation orders.

``streamrace device script.py`` runs a script on it. The device must be installed before torch is imported
(:mod:`streamrace.device.launch`), and stays for the life of the process. This package itself imports no torch.

``docs/concepts/departures.md`` lists the departures from hardware, and the errors that go unseen.
"""
