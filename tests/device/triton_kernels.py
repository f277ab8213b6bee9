"""The Triton kernels of the tests: only processes with a simulated GPU import them."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def gather(x, index, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + tl.load(index + at)))


@triton.jit
def column(x, out, rows, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at * stride, at < rows), at < rows)


@triton.jit
def double_in_place(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)


@triton.jit
def beyond(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def wild(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at + (1 << 40), at * 1.0)


@triton.jit
def waits_for_the_next(flags, BLOCK: tl.constexpr):
    me = tl.program_id(0)
    tl.atomic_xchg(flags + me, 1)
    while tl.atomic_add(flags + (me + 1) % BLOCK, 0) == 0:
        pass


@triton.jit
def spins_on_a_load(flag, out):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(out, 1)


@triton.jit
def waits_for_the_former(flags):
    me = tl.program_id(0)
    while (me > 0) & (tl.atomic_add(flags + tl.maximum(me - 1, 0), 0) == 0):
        pass
    tl.atomic_xchg(flags + me, 1)


@triton.jit
def locked(lock, total, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def assumes(x):
    tl.assume(tl.load(x) > 0)


@triton.jit
def assembles(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + at)], tl.float32, is_pure=True, pack=1)
    tl.store(x + at, value)


@triton.jit
def from_numbers(addresses, BLOCK: tl.constexpr):
    there = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(there + tl.arange(0, BLOCK), 1.0)


@triton.jit
def arithmetic(x, y, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a + b)
    tl.store(out + BLOCK + at, a - b)
    tl.store(out + 2 * BLOCK + at, a * b)
    tl.store(out + 3 * BLOCK + at, -a)
    tl.store(out + 4 * BLOCK + at, tl.maximum(a, b))
    tl.store(out + 5 * BLOCK + at, tl.where(a < b, a, b))
    tl.store(out + 6 * BLOCK + at, tl.abs(a))
    tl.store(out + 7 * BLOCK + at, tl.clamp(a, -0.5, 0.5))


@triton.jit
def convert(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def product(x, y, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(x + m[:, None] * K + k[None, :])
    b = tl.load(y + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(a, b).to(out.dtype.element_ty))


@triton.jit
def normalize(x, out, eps, scale: tl.float64, whole: "i64", BLOCK: tl.constexpr):  # noqa: F821
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.static_assert(eps.dtype == tl.float32 and scale.dtype == tl.float64)
    tl.store(out + at, value * tl.rsqrt(tl.sum(value * value) / BLOCK + eps) * scale.to(tl.float32) + whole)


@triton.jit
def reductions(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out, tl.sum(value))
    tl.store(out + 1, tl.max(value))
    tl.store(out + 2, tl.min(value))
    tl.store(out + 3, tl.argmax(value, 0))
    tl.store(out + 4 + at, tl.cumsum(value))
    tl.store(out + 4 + BLOCK + at, tl.sort(value))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def with_own_reduction(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, BLOCK)), 0, larger))


@triton.jit
def from_libdevice(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, libdevice.tanh(value))
    tl.store(out + BLOCK + at, libdevice.rsqrt(value))
    tl.store(out + 2 * BLOCK + at, libdevice.pow(value, 3.0))
    tl.store(out + 3 * BLOCK + at, libdevice.erf(value))
    tl.store(out + 4 * BLOCK + at, tl.extra.cuda.libdevice.div_rn(value, 3.0))
    tl.store(out + 5 * BLOCK + at, libdevice.isnan(value).to(tl.float32))
    tl.store(out + 6 * BLOCK + at, libdevice.round(value))
    tl.store(out + 7 * BLOCK + at, libdevice.fma(value, value, 1.0))
    tl.store(out + 8 * BLOCK + at, libdevice.float2int_rz(value).to(tl.float32))
    tl.store(out + 9 * BLOCK + at, libdevice.mul_rn(value, 3.0))
    tl.store(out + 10 * BLOCK + at, libdevice.nextafter(value, 9.0))
    tl.store(out + 11 * BLOCK + at, libdevice.ldexp(value, -3))
    tl.store(out + 12 * BLOCK + at, libdevice.ilogb(value).to(tl.float32))


@triton.jit
def without_counterpart(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, libdevice.rcp64h(tl.load(x + at)))


@triton.jit
def accumulate(x, total, largest, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.atomic_add(total + tl.arange(0, BLOCK) % 2, value)
    tl.atomic_max(largest, tl.max(value.to(tl.float32)))
    tl.atomic_add(count, 1, sem="relaxed")


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 16}, num_warps=2, num_ctas=2),
        triton.Config({"BLOCK": 32}, num_warps=4),
        triton.Config({"BLOCK": 64}, num_warps=8),
    ],
    key=["n"],
    reset_to_zero=["blocks"],
    prune_configs_by={"early_config_prune": lambda configs, given, **_: configs[:2]},
)
@triton.heuristics({"WHOLE": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def tuned(x, blocks, n, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, BLOCK if WHOLE else -BLOCK, at < n)
    tl.atomic_add(blocks, 1)


@triton.jit
def copy_tile(source, target, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def copy_tile_of(source, target, rows, columns, M: tl.constexpr, N: tl.constexpr):
    given = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [M, N])
    made = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    made.store([row, column], given.load([row, column]) * 2)


@triton.jit
def drawn(out, seed, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.rand(seed, at))


@triton.jit
def sum_of_rows(x, out, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    at = tl.arange(0, BLOCK)
    for row in range(rows):
        total += tl.load(x + row.to(tl.int64) * BLOCK + at)
    for row in tl.range(0, rows, 2, num_stages=2):
        total += tl.load(x + row.to(tl.int64) * BLOCK + at)
    for time in tl.static_range(2):
        total += (tl.full((BLOCK,), 1.0, tl.float32), tl.full((BLOCK,), 2.0, tl.float32))[time]
    tl.store(out + at, total)


@triton.jit
def compares(x, out, limit, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    above = tl.load(x + at) > limit
    one = above.to(x.dtype.element_ty)
    tl.store(out + at, (one + one) / (one + 1))
    tl.store(out + BLOCK + at, tl.where(above == (at < 9), one - 1, 7))
