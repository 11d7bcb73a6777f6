"""What stands between the products of large batches, where a library multiplies; and the start
of rows whose inputs are given.
"""

import triton
import triton.language as tl

from engine.cuda.kernels.common import begin, cell, to_fp8


@triton.jit
def norm(
    x,
    add,
    out,
    squares,
    floor,
    out_scale,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
    FP8: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Adds `add` to x, if there is one, and norms: out = x * out_scale / sqrt(sum x^2 + floor).

    Leaves the sum of squares as one part, too. x, add, out: [rows, WIDTH].
    """
    row = tl.program_id(0)
    begin(PDL)
    c = tl.arange(0, BLOCK)
    mask = c < WIDTH
    value = tl.load(x + row * WIDTH + c, mask=mask, other=0.0)
    kind = value.dtype
    value = value.to(tl.float32)
    if ADDS:
        more = tl.load(add + row * WIDTH + c, mask=mask, other=0.0).to(tl.float32)
        value = (value + more).to(kind)
        tl.store(x + row * WIDTH + c, value, mask=mask)
        value = value.to(tl.float32)
    total = tl.sum(value * value, 0)
    tl.store(squares + row * STRIDE, total)
    value = value * tl.rsqrt(total + floor)
    if FP8:
        tl.store(out + row * WIDTH + c, to_fp8(value * out_scale), mask=mask)
    else:
        tl.store(out + row * WIDTH + c, value.to(kind), mask=mask)


@triton.jit
def rotate(
    qkv,
    query,
    position,
    slot,
    table,
    cosine,
    sine,
    kv,
    kv_scale,
    value_offset,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    """What `project_qkv` does after its product: qkv [rows, 3 * HEADS * HEAD].

    A program takes GROUP heads of one part of one row.
    """
    part = tl.program_id(0)
    row = tl.program_id(1)
    group = tl.program_id(2)
    begin(PDL)
    width: tl.constexpr = GROUP * HEAD
    n = group * width + tl.arange(0, width)
    y = tl.load(qkv + row * (3 * HEADS * HEAD) + part * (HEADS * HEAD) + n)
    kind = y.dtype
    y = y.to(tl.float32)
    if part < 2:
        pair = tl.arange(0, HEAD // 2)
        c = tl.load(cosine + row * (HEAD // 2) + pair)[None, :]
        s = tl.load(sine + row * (HEAD // 2) + pair)[None, :]
        a, b = tl.split(tl.reshape(y, (GROUP, HEAD // 2, 2)))
        y = tl.reshape(tl.join(a * c - b * s, a * s + b * c), (width,))
    if part == 0:
        tl.store(query + row * (HEADS * HEAD) + n, y.to(kind))
    else:
        page, offset = cell(table, tl.load(slot + row), tl.load(position + row), PAGES, PAGE)
        place = (page * HEADS + n // HEAD) * (PAGE * HEAD) + offset * HEAD + n % HEAD
        place += (part - 1).to(tl.int64) * value_offset
        if FP8:
            scale = tl.load(kv_scale + (part - 1) * HEADS + n // HEAD)
            tl.store(kv + place, to_fp8(y.to(kind).to(tl.float32) / scale))
        else:
            tl.store(kv + place, y.to(kv.dtype.element_ty))


@triton.jit
def swiglu(
    gated,
    out,
    out_scale,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    """out [rows, HIDDEN] of gated [rows, 2 * HIDDEN], gate and up in turn."""
    row = tl.program_id(1)
    begin(PDL)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    both = tl.program_id(0) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    y = tl.load(gated + row * (2 * HIDDEN) + both)
    gate, up = tl.split(tl.reshape(y, (BLOCK, 2)))
    gate = gate.to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(y.dtype)
    passed = (gate.to(tl.float32) * up.to(tl.float32)).to(y.dtype)
    if FP8:
        tl.store(out + row * HIDDEN + n, to_fp8(passed.to(tl.float32) * out_scale))
    else:
        tl.store(out + row * HIDDEN + n, passed)


@triton.jit
def start(
    x,
    position,
    frequency,
    squares,
    cosine,
    sine,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows whose inputs x [rows, WIDTH] and positions [rows] are given: squares and rotations."""
    row = tl.program_id(0)
    begin(PDL)
    c = tl.arange(0, BLOCK)
    value = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
    tl.store(squares + row * STRIDE, tl.sum(value * value, 0))
    pair = tl.arange(0, PAIRS)
    angle = tl.load(position + row).to(tl.float32) * tl.load(frequency + pair)
    tl.store(cosine + row * PAIRS + pair, tl.cos(angle))
    tl.store(sine + row * PAIRS + pair, tl.sin(angle))
