"""Reads and writes views of tensors on two streams, some ordered and some not; results are used past their views."""

from __future__ import annotations

import torch

side = torch.cuda.Stream()
current = torch.cuda.current_stream()
base = torch.arange(256, dtype=torch.float32, device="cuda").view(16, 16)

VIEWS = {
    "rows": lambda x: x[2:5],
    "columns": lambda x: x[:, 3:7],
    "steps": lambda x: x[::3, 1::2],
    "transposed": lambda x: x.t()[4:6],
    "diagonal": lambda x: x.diagonal(),
    "expanded": lambda x: x[0, :1].expand(8),
    "as strided": lambda x: torch.as_strided(x, (4, 3), (32, 5), 7),
    "unfolded": lambda x: x.view(-1).unfold(0, 3, 3),
    "chunk": lambda x: x.chunk(4)[2],
    "split": lambda x: x.split([3, 13])[0],
    "bytes": lambda x: x.view(torch.uint8)[1, 3:9],
    "narrow": lambda x: x.narrow(1, 15, 1),
    "squeezed": lambda x: x[None, 5].squeeze(0).unsqueeze(-1),
    "permuted": lambda x: x.view(2, 8, 16).permute(2, 0, 1)[3],
    "real": lambda x: torch.view_as_real(x.view(torch.complex64))[..., 1],
    "empty": lambda x: x[3:3],
    "detached": lambda x: x.detach()[7],
    "set": lambda x: torch.empty(0, device="cuda").set_(x.untyped_storage(), 10, (4,), (2,)),
}


# One view is written on the side stream while another is read here; then the two are ordered.
MEETING = """
side.wait_stream(current)
with torch.cuda.stream(side): VIEWS["{first}"](base).mul_(0) if "{first}" != "expanded" else base[0, :1].mul_(0)
VIEWS["{second}"](base) + 0
current.wait_stream(side)
"""

for first in VIEWS:
    for second in VIEWS:
        exec(compile(MEETING.format(first=first, second=second), f"{first}-{second}.py", "exec"))

copy = base[:, 2:4].clone()
kept = base[3]
del base
print(kept.sum().item(), copy.is_contiguous())
del kept
with torch.cuda.stream(side):
    torch.ones(16, 16, device="cuda").view(4, 64)[1].copy_(copy.view(-1).repeat(2))
