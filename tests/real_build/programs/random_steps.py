"""Runs COUNT random programs of SEED over three streams: some steps are ordered, some are not. Each step is one line.

Each program is source code with a file name of its own, so that a race names its program and its step.
"""

from __future__ import annotations

import random
import sys

import torch

# Each takes three 4x4 tensors, and changes the first in place or gives a new one. The last one makes the host wait.
OPERATIONS = (
    "a.add_(b)",
    "a + b * c",
    "torch.mul(b, c, out=a) if a is not b and a is not c else a.neg_()",
    "a @ b.t()",
    "(a.narrow(0, 1, 2).copy_(b[:2] * 2), a)[1]",
    "(a.view(-1)[::2].fill_(1), a)[1]",
    "torch.where(a > 0, b, c)",
    "torch.cat([a[:1], b[1:3], c[3:]])",
    "a.clamp_(-3, 3).softmax(0)",
    "b.sum(0, keepdim=True).expand(4, 4) + a",
    "(torch._foreach_add_([a], [b]), a)[1] if a is not b else a.abs()",
    "torch.nn.functional.dropout(a, 0.3)",
    "a.uniform_(-1, 1)",
    "a.index_select(0, rows)",
    "a.copy_(torch.empty(4, 4, pin_memory=True).copy_(b, non_blocking=True), non_blocking=True)",
    "torch.empty(600, 600, device='cuda').fill_(2.0)[:4, :4] + a",
    "a.mul_(float(b.sum() > 0) + 2)",
)
ORDERS = (
    "streams[{stream}].wait_stream(streams[{last}])",
    "event.record(streams[{last}]), streams[{stream}].wait_event(event)",
    "event.record(streams[{last}]), event.synchronize()",
    "pass",
    "pass",
)


def program(draw: random.Random) -> str:
    """Return the source code of a program."""
    lines, last = [], 0
    for _ in range(draw.randint(5, 25)):
        stream = draw.randrange(3)
        a, b, c = (draw.randrange(3) for _ in range(3))
        if stream != last:
            lines.append(draw.choice(ORDERS).format(stream=stream, last=last, which=a))
        lines.append(
            f"with torch.cuda.stream(streams[{stream}]): a, b, c = tensors[{a}], tensors[{b}], tensors[{c}]; "
            f"tensors[{a}] = {draw.choice(OPERATIONS)}; a = b = c = None"
        )
        last = stream
    return "\n".join(lines)


def main(seed: int, count: int) -> None:
    draw = random.Random(seed)
    for number in range(count):
        torch.manual_seed(number)
        streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        known = {
            "torch": torch,
            "streams": streams,
            "event": torch.cuda.Event(),
            "tensors": [torch.randn(4, 4).cuda() for _ in range(3)],
            "rows": torch.tensor([3, 1, 0, 2]).cuda(),
        }
        exec(compile(program(draw), f"random{number}.py", "exec"), known)
        torch.cuda.synchronize()
        known.clear()
    print(count, "programs")


main(*map(int, sys.argv[1:]))
