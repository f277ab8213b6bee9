"""Connects ``torch.distributed`` to the simulated GPU: supplies the backend ``nccl``, which CPU builds lack."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary


def install() -> None:
    """Give torch.distributed the backend ``nccl``. Do nothing in a build without torch.distributed."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch._C import _distributed_c10d as compiled
    from torch.distributed import distributed_c10d as c10d

    from streamrace.device import collectives, operators, refusals, versions
    from streamrace.device.nccl import ProcessGroupNCCL

    module: Any
    for module in (c10d, dist, compiled):
        for name in versions.NCCLS:
            setattr(module, name, ProcessGroupNCCL)
    versions.of_group(ProcessGroupNCCL, c10d)
    operators.install(ProcessGroupNCCL)
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    plain_new_group: Any = c10d._new_process_group_helper
    plain_batch: Any = c10d.batch_isend_irecv
    c: Any = torch._C
    c._nccl_version = lambda: 2 << 32 | 28 << 16 | 9
    c._nccl_version_suffix = lambda: b""

    def new_group(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        collectives.drain()  # the host waits for the other ranks next, and their devices may wait for this rank's
        devices = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
        for name in devices.values():
            refusals.backend(name)
        ProcessGroupNCCL.host = devices.get("cpu") == c10d.Backend.GLOO
        return plain_new_group(size, rank, ranks, backend, *args, **kwargs)

    def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
        known = p2p_op_list and all(isinstance(op, dist.P2POp) for op in p2p_op_list)
        group = known and (p2p_op_list[0].group or (c10d._get_default_group() if dist.is_initialized() else None))
        if not isinstance(group, ProcessGroupNCCL) or not all(op.tensor.is_cuda for op in p2p_op_list):
            return plain_batch(p2p_op_list)  # type: ignore[no-any-return]
        device = torch.device("cuda", torch.cuda.current_device())
        group._start_coalescing(device)
        try:
            plain_batch(p2p_op_list)
        finally:
            work = group._end_coalescing(device)
        return [work]

    batch_isend_irecv.__doc__ = plain_batch.__doc__
    module = c10d
    module._new_process_group_helper = new_group
    for module in (c10d, dist):
        module.batch_isend_irecv = batch_isend_irecv
    _keep_works_of_join()


def _keep_works_of_join() -> None:
    """Keep the work by which a rank says that it has a batch (``model.join()``) until its next one.

    DDP's reducer waits for it, and keeps the part in C++ alone, whose wait, without the rest, has no end.
    """
    from torch.distributed.algorithms.join import Join

    plain: Any = Join.notify_join_context
    works: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def notify(joinable: Any) -> Any:
        works[joinable] = work = plain(joinable)
        return work

    module: Any = Join
    module.notify_join_context = staticmethod(notify)
