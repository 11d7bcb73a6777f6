"""The transformers beside Mimi's quantiser: norm and projection in one, and attention on a ring."""

import triton
import triton.language as tl

from engine.cuda.kernels.common import gdc_launch_dependents, gdc_wait


@triton.jit
def norm_linear(
    x,
    norm_weight,
    norm_bias,
    weight,
    out,
    count,
    epsilon,
    CHANNELS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A layer norm over CHANNELS of DIM channels, a projection, and a GELU if asked.

    x: [count, DIM] float32, zero past CHANNELS; norm_weight, norm_bias: [DIM] float32, likewise;
    weight: [WIDTH, DIM]; out: [count, WIDTH].
    """
    tiles = tl.cdiv(count, TILE_M)
    pid = tl.program_id(0)
    m = (pid % tiles) * TILE_M + tl.arange(0, TILE_M)
    n = (pid // tiles) * TILE_N + tl.arange(0, TILE_N)
    d = tl.arange(0, DIM)
    live = (m < count)[:, None]
    if PDL:
        gdc_launch_dependents()
    w = tl.load(weight + n[:, None] * DIM + d[None, :])
    scale = tl.load(norm_weight + d)[None, :]
    offset = tl.load(norm_bias + d)[None, :]
    if PDL:
        gdc_wait()
    v = tl.load(x + m[:, None] * DIM + d[None, :], mask=live, other=0.0)
    centred = v - (tl.sum(v, 1) / CHANNELS)[:, None]
    if CHANNELS < DIM:
        centred = tl.where((d < CHANNELS)[None, :], centred, 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 1) / CHANNELS + epsilon)
    normed = centred / deviation[:, None] * scale + offset
    y = tl.dot(normed.to(weight.dtype.element_ty), tl.trans(w), input_precision=PRECISION)
    if GELU:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(out + m[:, None] * WIDTH + n[None, :], y.to(out.dtype.element_ty), mask=live)


@triton.jit
def attend(
    qkv,
    ring,
    out,
    frequencies,
    slot,
    frames,
    scale,
    RING_SLOT: tl.constexpr,
    STEPS: tl.constexpr,
    STEPS_TILE: tl.constexpr,
    CONTEXT: tl.constexpr,
    CELLS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rotates a frame's queries and keys, attends, and writes the frame's keys and values.

    Of a head's queries and keys the first numbers of all pairs come first, then the second ones:
    HALF numbers each, with zeros behind the real ones. The frame's STEPS positions are written
    before any of them attends, so a query sees the positions after `last - CONTEXT` up to its own.

    qkv: [rows, STEPS, 3, HEADS, 2 * HALF]; ring: [slots, HEADS, 2 (key, value), CONTEXT, 2 *
    HALF]; out: [rows, STEPS, HEADS, 2 * HALF]; frequencies: [HALF] float32; frames: [slots], the
    frames seen. Grid: (rows, HEADS).
    """
    DIM: tl.constexpr = 2 * HALF
    row = tl.program_id(0)
    head = tl.program_id(1)
    half = tl.arange(0, HALF)
    dim = tl.arange(0, DIM)
    cell = tl.arange(0, CELLS)
    if PDL:
        gdc_launch_dependents()
    place = tl.load(slot + row).to(tl.int64)
    offset = tl.load(frames + place) * STEPS
    keys = ring + place * RING_SLOT + head * (2 * CONTEXT * DIM)
    values = keys + CONTEXT * DIM
    # What earlier frames wrote is loaded before this frame's projections are there.
    held_at = tl.minimum(cell, CONTEXT - 1)[:, None] * DIM
    k1 = tl.load(keys + held_at + half[None, :])
    k2 = tl.load(keys + held_at + HALF + half[None, :])
    v = tl.load(values + held_at + dim[None, :])
    t = tl.arange(0, STEPS_TILE)
    live = (t < STEPS)[:, None]
    angle = (offset + t).to(tl.float32)[:, None] * tl.load(frequencies + half)[None, :]
    cos, sin = tl.cos(angle), tl.sin(angle)
    if PDL:
        gdc_wait()
    base = qkv + ((row * STEPS + t) * (3 * HEADS * DIM) + head * DIM)[:, None]
    kind = ring.dtype.element_ty
    a = tl.load(base + half[None, :], mask=live, other=0.0).to(tl.float32) * scale
    b = tl.load(base + HALF + half[None, :], mask=live, other=0.0).to(tl.float32) * scale
    q1, q2 = (a * cos - b * sin).to(kind), (a * sin + b * cos).to(kind)
    base += HEADS * DIM
    a = tl.load(base + half[None, :], mask=live, other=0.0).to(tl.float32)
    b = tl.load(base + HALF + half[None, :], mask=live, other=0.0).to(tl.float32)
    new_k1, new_k2 = (a * cos - b * sin).to(kind), (a * sin + b * cos).to(kind)
    new_v = tl.load(base + HEADS * DIM + dim[None, :], mask=live, other=0.0)
    written = ((offset + t) % CONTEXT)[:, None] * DIM
    tl.store(keys + written + half[None, :], new_k1, mask=live)
    tl.store(keys + written + HALF + half[None, :], new_k2, mask=live)
    tl.store(values + written + dim[None, :], new_v, mask=live)

    old = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)
    old = tl.dot(q2, tl.trans(k2), old, input_precision=PRECISION)
    now = tl.dot(q1, tl.trans(new_k1), input_precision=PRECISION)
    now = tl.dot(q2, tl.trans(new_k2), now, input_precision=PRECISION)
    # Positive, as the remainder must be.
    ABOVE: tl.constexpr = ((CELLS + CONTEXT) // CONTEXT) * CONTEXT
    position = offset - 1 - (offset - 1 - cell + ABOVE) % CONTEXT
    seen = (cell < CONTEXT) & (position >= 0) & (position >= offset + STEPS - CONTEXT)
    old = tl.where(seen[None, :], old, -float("inf"))
    now = tl.where((t[None, :] <= t[:, None]) & (t < STEPS)[None, :], now, -float("inf"))
    most = tl.maximum(tl.max(old, 1), tl.max(now, 1))[:, None]
    old = tl.exp(old - most)
    now = tl.exp(now - most)
    total = tl.sum(old, 1) + tl.sum(now, 1)
    y = tl.dot(old.to(kind), v, input_precision=PRECISION)
    y = tl.dot(now.to(kind), new_v, y, input_precision=PRECISION) / total[:, None]
    place_out = out + ((row * STEPS + t) * (HEADS * DIM) + head * DIM)[:, None] + dim[None, :]
    tl.store(place_out, y.to(out.dtype.element_ty), mask=live)
