"""Copies between the host and the device in all ways, of views as well; what is pinned is used again in between."""

from __future__ import annotations

import torch

side = torch.cuda.Stream()
pinned = torch.arange(64, dtype=torch.float32).pin_memory()
pageable = torch.arange(64, dtype=torch.float32)
x = torch.zeros(8, 8, device="cuda")
wide = torch.zeros(8, 8, dtype=torch.float64, device="cuda")

for host in (pinned, pageable):
    for non_blocking in (False, True):
        square = host.view(8, 8)
        x.copy_(square, non_blocking=non_blocking)
        x.t().copy_(square, non_blocking=non_blocking)
        x[:, ::2].copy_(square[:, ::2], non_blocking=non_blocking)
        wide.copy_(square, non_blocking=non_blocking)
        x[2:4].copy_(square[0], non_blocking=non_blocking)
        square.copy_(x, non_blocking=non_blocking)
        square.copy_(x.t(), non_blocking=non_blocking)
        square.copy_(wide, non_blocking=non_blocking)
        square[:, 1].copy_(x[:, 0], non_blocking=non_blocking)
        with torch.cuda.stream(side):
            y = host.to("cuda", non_blocking=non_blocking)
            y.add_(1)
            y.to("cpu", non_blocking=non_blocking)
            host.to("cuda", torch.bfloat16, non_blocking=non_blocking)
        side.wait_stream(torch.cuda.current_stream())
        host.mul_(2)
        print(host.sum().item() >= 0, square[0, 0].item(), y.sum().item())

blocks = [torch.empty(1000, pin_memory=True) for _ in range(3)]
for step in range(4):
    block = blocks.pop(0)
    block.fill_(step)
    with torch.cuda.stream(side):
        done = block.cuda(non_blocking=True)
    event = side.record_event()
    blocks.append(torch.empty(1000).pin_memory())
    torch.cuda.current_stream().wait_event(event)
    print(done.mean().item(), x.view(-1)[:3].tolist(), x.unfold(0, 2, 2).numel())
print(torch.tensor([1.0, 2.0]).cuda().cpu(), torch.tensor(3.0, device="cuda").item(), bool(x.any()))
x.untyped_storage().copy_(torch.ones(64).untyped_storage(), non_blocking=True)
print(x.cpu().numpy().shape, torch.cat([x, wide.float()]).cpu().shape)
