"""What a dry run records is what a live run records: every launch, access, wait, block and time."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from rehearsed import difference, live, rehearse_apart, told

from streamrace.trace.records import Launch
from tests.touched import rehearsed_alike

# Not here: gradients of a recurrent network added to those of a step before. A live run executes its backward pass in
# one of autograd's threads, within which the engine goes on with what it has, and so adds them in another order.
PROGRAMS = {
    "a loop with autocast and hooks": """
        import torch
        from torch import nn
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Dropout(0.1), nn.Linear(96, 8)).cuda()
        seen = []
        model[0].weight.register_hook(lambda grad: grad * 2)
        model[2].register_forward_hook(lambda module, args, out: out + 1)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda")
        for step in range(3):
            x = torch.randn(16, 64).cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen.append(loss.detach())
        print(f"{sum(loss.item() for loss in seen) / 3:.4f}")
    """,
    "side streams and pinned copies": """
        import torch
        side, copies = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        host = [torch.randn(300, 300).pin_memory() for _ in range(4)]
        kept = torch.empty(300, 300).pin_memory()
        total = torch.zeros(300, 300, device="cuda")
        for one in host:
            with torch.cuda.stream(copies):
                here = one.cuda(non_blocking=True)
            side.wait_stream(copies)
            with torch.cuda.stream(side):
                product = here @ here.T
                here.record_stream(side)
            done = side.record_event()
            torch.cuda.current_stream().wait_event(done)
            total += product
            del here, product
            if done.query():
                total.mul_(0.5)
        kept.copy_(total, non_blocking=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    """,
    "a race": """
        import torch
        side = torch.cuda.Stream()
        x = torch.ones(1000, 1000, device="cuda")
        y = x @ x
        with torch.cuda.stream(side):
            z = y + 1
        y.zero_()
    """,
    "memory that is handed out again": """
        import torch
        streams = [torch.cuda.Stream() for _ in range(3)]
        kept = []
        for size in (100, 70_000, 3_000_000, 12_000_000, 500, 3_000_000, 900_000):
            for stream in streams:
                with torch.cuda.stream(stream):
                    one = torch.empty(size, device="cuda")
                    one.fill_(1)
                    other = one * 2
                    other.record_stream(streams[0])
                    kept.append(other[: size // 2])
            del kept[: len(kept) // 2]
        storage = torch.empty(5000, device="cuda").untyped_storage()
        storage.resize_(0)
        storage.resize_(80_000)
        told = torch.cuda.memory_stats()
        torch.zeros(int(torch.cuda.max_memory_reserved() >> 20), device="cuda")  # a record tells the number
        torch.zeros(told["segment.all.peak"] + told["active_bytes.all.peak"] % 1000, device="cuda")
    """,
    "attention, convolution, embedding, losses": """
        import torch
        from torch import nn
        from torch.nn import functional as F
        torch.manual_seed(0)
        embed, conv = nn.Embedding(50, 32).cuda(), nn.Conv2d(3, 8, 3, padding=1).cuda()
        norm = nn.GroupNorm(2, 8).cuda()
        for dtype in (torch.float32, torch.bfloat16):
            ids = torch.arange(64).reshape(4, 16).cuda() % 50
            h = embed(ids).to(dtype).view(4, 16, 4, 8).transpose(1, 2)
            out = F.scaled_dot_product_attention(h, h, h, is_causal=True).transpose(1, 2).reshape(4, 16, 32)
            picture = torch.randn(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
            out2 = F.max_pool2d(norm(conv(picture)), 2)
            loss = F.cross_entropy(out.float().flatten(0, 1), ids.flatten() % 32) + out2.mean()
            (loss + F.softmax(out, -1).max()).backward()
            values, order = torch.topk(out.flatten(), 5)
            split = torch.cat([part.cumsum(-1) for part in out.chunk(3, dim=1)], dim=1)
            split.index_add_(1, ids[0], out)
            where = torch.where(out > 0, out, torch.zeros((), device="cuda", dtype=dtype))
    """,
    "recurrent networks": """
        import torch
        torch.manual_seed(0)
        model = torch.nn.LSTM(16, 24, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True).cuda()
        for _ in range(2):
            out, (h, c) = model(torch.randn(4, 7, 16).cuda())
            (out.sum() + h.mean()).backward()
            model.zero_grad()
    """,
    "masks, indices and sorts": """
        import torch
        x = torch.randn(64, 32).cuda()
        x[:, 3] = 0
        x.masked_fill_(x > 1, 0)
        x[torch.tensor([1, 5])] += 1
        x[x.argmax(0)] = 2
        x.index_put_((torch.arange(8, device="cuda"), torch.arange(8, device="cuda")), torch.zeros(8, device="cuda"))
        y = x.gather(1, x.argsort(1)).scatter_add(0, torch.zeros(64, 32, dtype=torch.long, device="cuda"), x)
        y = torch.einsum("ij,kj->ik", y, x).triu().clamp_(-1, 1).to(torch.float16).t().contiguous()
        y = torch.nn.functional.pad(y[None], (1, 2)).roll(1).flip(0).expand(3, -1, -1).reshape(-1)
        torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(y)], 1.0)
    """,
    "foreach and fused optimizers": """
        import torch
        torch.manual_seed(3)
        from torch.optim import SGD, Adagrad, Adam, AdamW
        for kind, how in ((SGD, {"momentum": 0.9}), (AdamW, {"foreach": True}), (Adam, {"fused": True}), (Adagrad, {}),
                          (Adam, {"capturable": True})):
            weights = [torch.nn.Parameter(torch.randn(40, 30, device="cuda")) for _ in range(3)]
            optimizer = kind(weights, lr=0.01, **how)
            for _ in range(2):
                sum((one * one).sum() for one in weights).backward()
                optimizer.step()
                optimizer.zero_grad()
    """,
}
# Nothing but flags and counts, or all that these programs have, is known: what is recorded does not depend on it.
REALS = {"few": 64, "all": 1 << 20}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dry_run_records_what_a_live_run_does(program: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAMS[program]))
    expected = live(script, (), tmp_path / "live")
    for name, real in REALS.items():
        found = rehearse_apart(script, (), tmp_path / name, real=real)
        wrong = difference(expected, found)
        assert not wrong, f"{name}: {wrong}"
        assert len(told(found)) > 8


MANY_PIECES = """
    import torch
    plain = torch.zeros(200 * 12, device="cuda")
    pieces = [plain[12 * at : 12 * at + 12] for at in range(200)]
    in_turn = torch.cat(pieces)  # one behind the other
    apart = torch.cat([piece[3:8] for piece in pieces])  # at equal distances
    both = torch.cat([half for at in range(100) for half in (pieces[at][1:], in_turn[12 * at : 12 * at + 12])])
    uneven = torch.cat([plain[at * at : at * at + 2] for at in range(2, 48)] + [plain[:5], plain[4:6]] * 20)
    columns = torch.cat([plain.view(200, 12)[:, at : at + 1] for at in range(12)] * 6)
"""


def test_of_very_many_pieces_a_dry_run_records_the_same_bytes_in_few(tmp_path: Path) -> None:
    """A shard for each of 16,384 ranks was most of the time of whoever read the trace."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MANY_PIECES))
    one, other = live(script, (), tmp_path / "live"), rehearse_apart(script, (), tmp_path / "dry")
    pairs = [pair for pair in zip(told(one), told(other), strict=True) if isinstance(pair[0], Launch)]
    for here, there in pairs:
        assert rehearsed_alike(here, there), (here, there)
    counts = [(len(here.reads), len(there.reads)) for here, there in pairs if here.kernel == "aten::cat"]
    assert counts == [(200, 1), (200, 1), (200, 2), (86, 46), (72, 72)]
