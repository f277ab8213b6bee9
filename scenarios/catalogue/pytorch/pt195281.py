"""The threaded process group of torch's own tests: collectives from a side stream are not ordered.

Rank 0's thread moves the data of all ranks on its own current stream, behind nothing of what the others do on theirs.
"""
# /// catalogue
# title = "Threaded process group: rank 0 reads another rank's part before it is written"
# mechanism = "Collective.join orders the threads on the host alone: rank 0 copies and reduces on its current stream, which does not wait for the streams from which the other ranks called."
# threads = ["https://github.com/pytorch/pytorch/pull/195281", "https://github.com/ROCm/pytorch/pull/3612"]
# kind = "open"
# known = "2.12.1 and 2.13.0; as the thread says, fixed in 2.15.0"
# affected = { packages = [] }
# fixed = { packages = [], arguments = ["--cured"] }
# ranks = 1
# places = ["pt195281.py:rank_1", "pt195281.py:<module>"]
# harm = "harmful"
# ///

import sys
import threading

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg

torch._C._distributed_c10d._set_thread_isolation_mode(True)
multi_threaded_pg._install_threaded_pg()
store, called = dist.HashStore(), threading.Event()
tensors = [torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")]
torch.cuda.synchronize()
join = multi_threaded_pg.Collective.join
events, recorded = {}, threading.Event()


def cured(self, rank, data):  # rank 0 waits for the stream of the other; what that does afterwards is not shown here
    events[rank] = torch.cuda.current_stream().record_event()
    (recorded.set if rank else recorded.wait)()
    if not rank:
        torch.cuda.current_stream().wait_event(events[1])
    return join(self, rank, data)


def rank_1():
    dist.init_process_group("threaded", rank=1, world_size=2, store=store)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(4):
            tensors[1] += 10.0  # rank 0 is to see all four
        called.set()
        dist.all_reduce(tensors[1])


if "--cured" in sys.argv:
    multi_threaded_pg.Collective.join = cured
other = threading.Thread(target=rank_1)
other.start()
dist.init_process_group("threaded", rank=0, world_size=2, store=store)
called.wait()
dist.all_reduce(tensors[0])
other.join()
print(tensors[0].double().sum().item(), tensors[1].double().sum().item())
