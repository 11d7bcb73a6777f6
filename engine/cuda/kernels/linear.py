"""Matrix products of few rows, with what comes before and after them.

x [rows, K] times weight [N, K], transposed. A product's input is normed by scaling its output
with 1 / sqrt(sum of squares + floor): the sums come in parts, as the kernel before made them.
"""

import triton
import triton.language as tl

from engine.cuda.kernels.common import cell, gdc_launch_dependents, gdc_wait, prefetch, to_fp8

STORE = tl.constexpr(0)
ADD = tl.constexpr(1)
SWIGLU = tl.constexpr(2)


@triton.jit
def _product(
    x,
    stride,
    weight,
    m,
    n,
    rows,
    K: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    AHEAD: tl.constexpr,
):
    k = tl.arange(0, TILE_K)
    if PDL:
        gdc_launch_dependents()
        if AHEAD > 0:
            # Weights don't depend on the kernel before: fetch their first lines while it ends.
            prefetch(weight + n[:, None] * K + tl.arange(0, AHEAD)[None, :] * 64)
        gdc_wait()
    inputs = x + m[:, None] * stride + k[None, :]
    weights = weight + n[:, None] * K + k[None, :]
    live = m[:, None] < rows
    total = tl.zeros((TILE_M, TILE_N), tl.float32)
    for _ in tl.range(0, K, TILE_K, num_stages=STAGES):
        a = tl.load(inputs, mask=live, other=0.0)
        total = tl.dot(a, tl.trans(tl.load(weights)), total, input_precision="ieee")
        inputs += TILE_K
        weights += TILE_K
    return total


@triton.jit
def _scale(
    squares, m, rows, floor, PARTS: tl.constexpr, PARTS_2: tl.constexpr, STRIDE: tl.constexpr
):
    part = tl.arange(0, PARTS_2)
    mask = (m[:, None] < rows) & (part[None, :] < PARTS)
    parts = tl.load(squares + m[:, None] * STRIDE + part[None, :], mask=mask, other=0.0)
    return tl.rsqrt(tl.sum(parts, 1) + floor)


@triton.jit(do_not_specialize=["rows", "row_tiles"])
def linear(
    x,
    x_stride,
    weight,
    out,
    out_stride,
    squares,
    out_squares,
    rows,
    row_tiles,
    floor,
    N: tl.constexpr,
    K: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_2: tl.constexpr,
    STRIDE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """out [rows, N] = x weight^T; PARTS 0: x isn't to be normed.

    ADD adds to `out` and leaves the parts of its new sums of squares, one a tile of columns.
    SWIGLU: the weight's rows are gate and up in turn; out is [rows, N / 2].
    """
    m = (tl.program_id(0) % row_tiles) * TILE_M + tl.arange(0, TILE_M)
    tile = tl.program_id(0) // row_tiles
    n = tile * TILE_N + tl.arange(0, TILE_N)
    y = _product(x, x_stride, weight, m, n, rows, K, TILE_M, TILE_N, TILE_K, STAGES, PDL, AHEAD)
    if PARTS > 0:
        y = y * _scale(squares, m, rows, floor, PARTS, PARTS_2, STRIDE)[:, None]
    kind = out.dtype.element_ty
    live = m[:, None] < rows
    y = y.to(kind)
    if EPILOGUE == STORE:
        tl.store(out + m[:, None] * out_stride + n[None, :], y, mask=live)
    elif EPILOGUE == ADD:
        place = out + m[:, None] * out_stride + n[None, :]
        old = tl.load(place, mask=live, other=0.0)
        new = (old.to(tl.float32) + y.to(tl.float32)).to(kind)
        tl.store(place, new, mask=live)
        new = new.to(tl.float32)
        tl.store(out_squares + m * STRIDE + tile, tl.sum(new * new, 1), mask=m < rows)
    else:
        gate, up = tl.split(tl.reshape(y, (TILE_M, TILE_N // 2, 2)))
        gate = gate.to(tl.float32)
        gate = (gate / (1.0 + tl.exp(-gate))).to(kind)
        passed = (gate.to(tl.float32) * up.to(tl.float32)).to(kind)
        half = tile * (TILE_N // 2) + tl.arange(0, TILE_N // 2)
        tl.store(out + m[:, None] * out_stride + half[None, :], passed, mask=live)


@triton.jit(do_not_specialize=["rows", "row_tiles"])
def project_qkv(
    x,
    x_stride,
    weight,
    query,
    squares,
    position,
    slot,
    table,
    cosine,
    sine,
    kv,
    kv_scale,
    value_offset,
    rows,
    row_tiles,
    floor,
    K: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_2: tl.constexpr,
    STRIDE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Queries, keys and values of normed rows: rotated, keys and values written to their pages.

    query: [rows, HEADS * HEAD]; cosine, sine: [rows, HEAD / 2]; kv: one layer's keys,
    [pages, HEADS, PAGE, HEAD], its values `value_offset` elements behind; kv_scale: [2, HEADS].
    """
    m = (tl.program_id(0) % row_tiles) * TILE_M + tl.arange(0, TILE_M)
    first = (tl.program_id(0) // row_tiles) * TILE_N
    n = first + tl.arange(0, TILE_N)
    y = _product(x, x_stride, weight, m, n, rows, K, TILE_M, TILE_N, TILE_K, STAGES, PDL, AHEAD)
    y = y * _scale(squares, m, rows, floor, PARTS, PARTS_2, STRIDE)[:, None]
    kind = query.dtype.element_ty
    y = y.to(kind).to(tl.float32)
    part = first // (HEADS * HEAD)
    head = (first % (HEADS * HEAD)) // HEAD
    inner = first % HEAD
    live = m < rows
    if part < 2:
        pair = inner // 2 + tl.arange(0, TILE_N // 2)
        turn = m[:, None] * (HEAD // 2) + pair[None, :]
        c = tl.load(cosine + turn, mask=live[:, None], other=0.0)
        s = tl.load(sine + turn, mask=live[:, None], other=0.0)
        a, b = tl.split(tl.reshape(y, (TILE_M, TILE_N // 2, 2)))
        y = tl.reshape(tl.join(a * c - b * s, a * s + b * c), (TILE_M, TILE_N))
    if part == 0:
        tl.store(query + m[:, None] * (HEADS * HEAD) + n[None, :], y.to(kind), mask=live[:, None])
    else:
        owner = tl.load(slot + m, mask=live, other=0)
        page, offset = cell(table, owner, tl.load(position + m, mask=live, other=0), PAGES, PAGE)
        place = (page * HEADS + head) * (PAGE * HEAD) + offset * HEAD + inner
        place = kv + place + (part - 1).to(tl.int64) * value_offset
        places = place[:, None] + tl.arange(0, TILE_N)[None, :]
        if FP8:
            scale = tl.load(kv_scale + (part - 1) * HEADS + head)
            tl.store(places, to_fp8(y.to(kind).to(tl.float32) / scale), mask=live[:, None])
        else:
            tl.store(places, y.to(kv.dtype.element_ty), mask=live[:, None])
