"""Attention of one query a row and head to its slot's ring of pages."""

import triton
import triton.language as tl

from engine.cuda.kernels.common import begin, half, to_fp8


@triton.jit
def _as(value, like, out, out_scale):
    value = value.to(like.dtype.element_ty)
    if out.dtype.element_ty == tl.float8e4nv:
        value = to_fp8(value.to(tl.float32) * out_scale)
    return value


@triton.jit
def attend(
    query,
    kv,
    kv_scale,
    out,
    position,
    slot,
    table,
    part_max,
    part_sum,
    part_out,
    arrived,
    value_offset,
    context,
    scale,
    out_scale,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT_PAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_2: tl.constexpr,
    TILE: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    """out [rows, HEADS * HEAD]: what the queries [rows, HEADS * HEAD] see of their slots' rings.

    Grid (splits, HEADS, rows). Position p sees the keys of p - context + 1..p. A split
    is SPLIT_PAGES pages at a fixed place of the ring, so that the order of all sums follows from
    the row's own position alone; the last of a row's splits to arrive adds them up, in order.
    SPLITS 1: there is only one split. scale: log2(e) / sqrt(head size). out_scale: of an FP8
    `out`.
    """
    split = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    begin(PDL)
    place = tl.load(position + row)
    owner = tl.load(slot + row)
    ring: tl.constexpr = PAGES * PAGE
    filled = tl.minimum(place + 1, ring)
    used = tl.cdiv(filled, SPLIT_PAGES * PAGE)
    if split < used:
        now = place % ring
        seen = tl.minimum(place + 1, context)
        d = tl.arange(0, HEAD)
        q = tl.load(query + row * (HEADS * HEAD) + head * HEAD + d).to(tl.float32) * scale
        if FP8:
            q = q * tl.load(kv_scale + head)
        t = tl.arange(0, TILE)
        per_page: tl.constexpr = PAGE // TILE
        tiles = tl.minimum(
            SPLIT_PAGES * per_page, tl.cdiv(filled - split * (SPLIT_PAGES * PAGE), TILE)
        )
        inner = t[:, None] * HEAD + d[None, :]
        if FP8:
            # Tensor cores, for their operands need the least conversion. Of the eight columns
            # that they take at least, the first is the query; the others are zero.
            only = (tl.arange(0, 8) == 0)[None, :]
            queries = tl.where(only, q[:, None], 0.0).to(tl.float16)
            top = -1.0e30
            total = tl.zeros((TILE,), tl.float32)
            heard = tl.zeros((HEAD, 8), tl.float32)
        else:
            most = tl.full((TILE,), -1.0e30, tl.float32)
            total = tl.zeros((TILE,), tl.float32)
            heard = tl.zeros((TILE, HEAD), tl.float32)
        for j in range(tiles):
            page = split * SPLIT_PAGES + j // per_page
            physical = tl.load(table + owner * PAGES + page).to(tl.int64)
            keys = kv + (physical * HEADS + head) * (PAGE * HEAD) + (j % per_page) * (TILE * HEAD)
            age = now - (page * PAGE + (j % per_page) * TILE + t)
            age = tl.where(age < 0, age + ring, age)
            visible = age < seen
            # Unseen numbers of a page are finite (a page is zeroed when it is taken): no mask.
            k = tl.load(keys + inner)
            v = tl.load(keys + value_offset + inner)
            if FP8:
                score = tl.sum(tl.dot(k.to(tl.float16), queries), 1)
                score = tl.where(visible, score, -1.0e30)
                new = tl.maximum(top, tl.max(score, 0))
                p = tl.where(visible, tl.exp2(score - new), 0.0)
                fade = tl.exp2(top - new)
                total = total * fade + p
                weights = tl.where(only, p[:, None], 0.0).to(tl.float16)
                heard = tl.dot(tl.trans(half(v)), weights, heard * fade)
                top = new
            else:
                score = tl.sum(k.to(tl.float32) * q[None, :], 1)
                score = tl.where(visible, score, -1.0e30)
                new = tl.maximum(most, score)
                p = tl.where(visible, tl.exp2(score - new), 0.0)
                fade = tl.exp2(most - new)
                total = total * fade + p
                heard = heard * fade[:, None] + p[:, None] * v.to(tl.float32)
                most = new
        if FP8:
            whole = tl.sum(total, 0)
            sound = tl.sum(heard, 1)
        else:
            top = tl.max(most, 0)
            factor = tl.exp2(most - top)
            whole = tl.sum(total * factor, 0)
            sound = tl.sum(heard * factor[:, None], 0)
        target = out + row * (HEADS * HEAD) + head * HEAD + d
        if SPLITS == 1:
            result = sound / whole
            if FP8:
                result = result * tl.load(kv_scale + HEADS + head)
            tl.store(target, _as(result, query, out, out_scale))
        else:
            pair = row * HEADS + head
            tl.store(part_max + pair * SPLITS_2 + split, top)
            tl.store(part_sum + pair * SPLITS_2 + split, whole)
            tl.store(part_out + (pair * SPLITS_2 + split) * HEAD + d, sound)
            tl.debug_barrier()
            if tl.atomic_add(arrived + pair, 1, sem="acq_rel", scope="gpu") == used - 1:
                e = tl.arange(0, SPLITS_2)
                there = e < used
                tops = tl.load(
                    part_max + pair * SPLITS_2 + e,
                    mask=there,
                    other=-1.0e30,
                    cache_modifier=".cg",
                )
                wholes = tl.load(
                    part_sum + pair * SPLITS_2 + e, mask=there, other=0.0, cache_modifier=".cg"
                )
                sounds = tl.load(
                    part_out + (pair * SPLITS_2 + e[:, None]) * HEAD + d[None, :],
                    mask=there[:, None],
                    other=0.0,
                    cache_modifier=".cg",
                )
                factors = tl.exp2(tops - tl.max(tops, 0))
                result = tl.sum(sounds * factors[:, None], 0) / tl.sum(wholes * factors, 0)
                if FP8:
                    result = result * tl.load(kv_scale + HEADS + head)
                tl.store(target, _as(result, query, out, out_scale))
                tl.store(arrived + pair, 0)


@triton.jit(do_not_specialize=["step"])
def attend_books(
    qkv,
    out,
    step,
    step_stride,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    STEPS: tl.constexpr,
    scale,
    PDL: tl.constexpr,
):
    """The depformer's attention of step `step` to the steps so far.

    qkv: one layer's [STEPS, rows, 3 * WIDTH], steps `step_stride` apart; out: [rows, WIDTH]. A
    program takes HEADS heads of one row. scale: log2(e) / sqrt(head size).
    """
    row = tl.program_id(0)
    begin(PDL)
    width: tl.constexpr = HEADS * HEAD
    n = tl.program_id(1) * width + tl.arange(0, width)
    base = qkv + row * (3 * WIDTH) + n
    q = tl.load(base + step * step_stride).to(tl.float32) * scale
    past = tl.arange(0, STEPS)
    there = (past <= step)[:, None]
    keys = base[None, :] + past[:, None] * step_stride + WIDTH
    k = tl.load(keys, mask=there, other=0.0).to(tl.float32)
    v = tl.load(keys + WIDTH, mask=there, other=0.0).to(tl.float32)
    score = tl.sum(tl.reshape(k * q[None, :], (STEPS, HEADS, HEAD)), 2)
    score = tl.where(there, score, -1.0e30)
    p = tl.exp2(score - tl.max(score, 0)[None, :])
    p = p / tl.sum(p, 0)[None, :]
    heard = tl.sum(p[:, :, None] * tl.reshape(v, (STEPS, HEADS, HEAD)), 0)
    tl.store(out + row * WIDTH + n, tl.reshape(heard, (width,)).to(out.dtype.element_ty))
