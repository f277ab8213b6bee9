"""Creates more streams than torch has; prints which are the same, and what streams and events say of themselves."""

from __future__ import annotations

import torch

default = torch.cuda.default_stream()
streams = [torch.cuda.Stream() for _ in range(40)]
print(default == torch.cuda.current_stream(), default.cuda_stream, default.stream_id, default.priority)
print([streams.index(stream) for stream in streams], {stream.priority for stream in streams})
urgent = [torch.cuda.Stream(priority=-1) for _ in range(34)]
print([urgent.index(stream) for stream in urgent], {stream.priority for stream in urgent})
print(len({*streams, *urgent}))

event = torch.cuda.Event()
print(event.query(), event.cuda_event == 0)
with torch.cuda.stream(streams[0]):
    print(torch.cuda.current_stream() == streams[0])
    event.record()
event.synchronize()
print(event.query(), streams[0].query())
