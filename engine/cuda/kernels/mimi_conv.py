"""Mimi's causal convolutions: matrix products over windows that overlap in memory.

What a convolution reads is a batch buffer [rows, kept + length]: the numbers kept from the frames
before, then this frame's, channels last, so that a window is a run of numbers. The kernel that
writes such a buffer also does all that its reader must remember: it copies the kept numbers out of
the slots' memory [2, slots, kept] and writes the last ones of the frame back. The memory has two
sides, one read and one written in turns by the parity of the slot's frame count, so that no two
programs of a launch meet.
"""

import triton
import triton.language as tl

from engine.cuda.kernels.common import gdc_launch_dependents, gdc_wait, prefetch


@triton.jit
def elu(x):
    return tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)


@triton.jit
def sides(memory, slot, frames, row, live, MEMORY_SIDE, MEMORY_SLOT):
    """Pointers to the side of a slot's memory to read, and to the one to write; the frame count."""
    place = tl.load(slot + row, mask=live, other=0).to(tl.int64)
    count = tl.load(frames + place, mask=live, other=0)
    parity = (count % 2).to(tl.int64)
    old = memory + place * MEMORY_SLOT + parity * MEMORY_SIDE
    new = memory + place * MEMORY_SLOT + (1 - parity) * MEMORY_SIDE
    return old, new, count


@triton.jit
def recall(target, old, new, number, live, LENGTH: tl.constexpr, KEPT: tl.constexpr):
    """Copies what is kept to the head of a buffer's row.

    target: pointers to the row; number: the numbers of the frame that a program makes, which
    tell it the kept ones that it copies.
    """
    for start in tl.static_range(0, KEPT, LENGTH):
        kept = start + number
        there = live & (kept < KEPT)
        value = tl.load(old + kept, mask=there, other=0.0)
        tl.store(target + kept, value, mask=there)
        # A frame shorter than what is kept leaves some of the old numbers.
        if LENGTH < KEPT:
            tl.store(new + kept - LENGTH, value, mask=there & (kept >= LENGTH))


@triton.jit
def remember(target, new, number, live, value, LENGTH: tl.constexpr, KEPT: tl.constexpr):
    """Stores a frame's numbers behind the kept ones, and the last of them in the memory."""
    value = value.to(target.dtype.element_ty)
    tl.store(target + KEPT + number, value, mask=live)
    if KEPT > 0:
        kept = number - (LENGTH - KEPT)
        tl.store(new + kept, value, mask=live & (kept >= 0))


@triton.jit
def convolve(
    source,
    weight,
    bias,
    residual,
    out,
    memory,
    slot,
    frames,
    count,
    SOURCE_ROW: tl.constexpr,
    STEP: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    KEPT: tl.constexpr,
    MEMORY_SIDE: tl.constexpr,
    MEMORY_SLOT: tl.constexpr,
    RESIDUAL_ROW: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ELU_IN: tl.constexpr,
    ELU_OUT: tl.constexpr,
    REPLICATE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """out[row, kept + step * WIDTH + n] = source[row, step * STEP :][:WINDOW] . weight[n].

    source: [rows, SOURCE_ROW]; weight: [WIDTH, WINDOW]; bias: [WIDTH] float32; residual:
    [rows, RESIDUAL_ROW], whose first STEPS * WIDTH numbers are added; out: [rows, KEPT + STEPS *
    WIDTH]; count: rows times STEPS. REPLICATE: a stream begins as if its first step had filled
    all that is kept.
    """
    tiles = tl.cdiv(count, TILE_M)
    pid = tl.program_id(0)
    m = (pid % tiles) * TILE_M + tl.arange(0, TILE_M)
    n = (pid // tiles) * TILE_N + tl.arange(0, TILE_N)
    row = m // STEPS
    step = m % STEPS
    live = m < count
    LENGTH: tl.constexpr = STEPS * WIDTH
    k = tl.arange(0, TILE_K)
    weights = weight + n[:, None] * WINDOW + k[None, :]
    if PDL:
        gdc_launch_dependents()
    if WINDOW == TILE_K:
        w = tl.load(weights)
    elif PDL:
        LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
        for start in tl.static_range(0, WINDOW, TILE_K):
            line = tl.arange(0, (TILE_K + LINE - 1) // LINE) * LINE
            prefetch(weight + n[:, None] * WINDOW + start + line[None, :])
    number = step[:, None] * WIDTH + n[None, :]
    target = (out + row * (KEPT + LENGTH))[:, None]
    if KEPT > 0:
        old, new, seen = sides(memory, slot, frames, row, live, MEMORY_SIDE, MEMORY_SLOT)
        old, new = old[:, None], new[:, None]
        first = (seen == 0)[:, None]
        begun = live[:, None]
        if REPLICATE:
            begun = begun & (seen > 0)[:, None]
        recall(target, old, new, number, begun, LENGTH, KEPT)
    else:
        new = target
    if PDL:
        gdc_wait()
    inputs = source + (row * SOURCE_ROW + step * STEP)[:, None] + k[None, :]
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    if WINDOW == TILE_K:
        x = tl.load(inputs, mask=live[:, None], other=0.0)
        if ELU_IN:
            x = elu(x.to(tl.float32)).to(weight.dtype.element_ty)
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)
    else:
        for _ in tl.range(0, WINDOW, TILE_K, num_stages=STAGES):
            x = tl.load(inputs, mask=live[:, None], other=0.0)
            if ELU_IN:
                x = elu(x.to(tl.float32)).to(weight.dtype.element_ty)
            acc = tl.dot(x, tl.trans(tl.load(weights)), acc, input_precision=PRECISION)
            inputs += TILE_K
            weights += TILE_K
    if HAS_BIAS:
        acc += tl.load(bias + n)[None, :]
    if HAS_RESIDUAL:
        before = residual + (row * RESIDUAL_ROW)[:, None] + number
        acc += tl.load(before, mask=live[:, None], other=0.0).to(tl.float32)
    if ELU_OUT:
        acc = elu(acc)
    remember(target, new, number, live[:, None], acc, LENGTH, KEPT)
    if REPLICATE:
        begins = live[:, None] & first & (step == 0)[:, None]
        for start in tl.static_range(0, KEPT, WIDTH):
            kept = start + n[None, :]
            value = acc.to(out.dtype.element_ty)
            tl.store(target + kept, value, mask=begins & (kept < KEPT))


@triton.jit
def residual_block(
    source,
    weight1,
    bias1,
    weight2,
    bias2,
    out,
    memory,
    slot,
    frames,
    count,
    SOURCE_ROW: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    STEPS: tl.constexpr,
    KEPT: tl.constexpr,
    MEMORY_SIDE: tl.constexpr,
    MEMORY_SLOT: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """A residual block and the ELU after it.

    source: [rows, SOURCE_ROW], before the block's first ELU; weight1: [INNER, WINDOW]; weight2:
    [WIDTH, INNER]; biases float32; out: [rows, KEPT + STEPS * WIDTH]; count: rows times STEPS.
    """
    m = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    row = m // STEPS
    step = m % STEPS
    live = m < count
    LENGTH: tl.constexpr = STEPS * WIDTH
    n = tl.arange(0, WIDTH)
    inner = tl.arange(0, INNER)
    k = tl.arange(0, TILE_K)
    if PDL:
        gdc_launch_dependents()
    number = step[:, None] * WIDTH + n[None, :]
    target = (out + row * (KEPT + LENGTH))[:, None]
    old, new, _ = sides(memory, slot, frames, row, live, MEMORY_SIDE, MEMORY_SLOT)
    old, new = old[:, None], new[:, None]
    recall(target, old, new, number, live[:, None], LENGTH, KEPT)
    weights = weight1 + inner[:, None] * WINDOW + k[None, :]
    if PDL:
        gdc_wait()
    start = source + (row * SOURCE_ROW + step * WIDTH)[:, None]
    inputs = start + k[None, :]
    acc = tl.zeros((TILE_M, INNER), tl.float32)
    for _ in tl.range(0, WINDOW, TILE_K, num_stages=STAGES):
        x = elu(tl.load(inputs, mask=live[:, None], other=0.0).to(tl.float32))
        x = x.to(weight1.dtype.element_ty)
        acc = tl.dot(x, tl.trans(tl.load(weights)), acc, input_precision=PRECISION)
        inputs += TILE_K
        weights += TILE_K
    hidden = elu(acc + tl.load(bias1 + inner)[None, :]).to(weight2.dtype.element_ty)
    w = tl.load(weight2 + n[:, None] * INNER + inner[None, :])
    y = tl.dot(hidden, tl.trans(w), input_precision=PRECISION) + tl.load(bias2 + n)[None, :]
    # The window's last step is the one that the block adds to.
    x = tl.load(start + (WINDOW - WIDTH) + n[None, :], mask=live[:, None], other=0.0)
    remember(target, new, number, live[:, None], elu(y + x.to(tl.float32)), LENGTH, KEPT)


@triton.jit
def first_block(
    pcm,
    weight0,
    bias0,
    weight1,
    bias1,
    weight2,
    bias2,
    out,
    samples,
    memory,
    slot,
    frames,
    SAMPLES: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_TILE: tl.constexpr,
    REACH: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    KEPT: tl.constexpr,
    KEPT_SAMPLES_TILE: tl.constexpr,
    SAMPLES_SIDE: tl.constexpr,
    MEMORY_SIDE: tl.constexpr,
    MEMORY_SLOT: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """The convolution of the waveform, the first residual block and the ELU after it.

    The first convolution is computed again for each of the REACH steps that the block's sees, so
    that nothing but samples is remembered: TAPS + REACH - 2 of them.

    pcm: [rows, SAMPLES] float32; weight0: [WIDTH, TAPS_TILE], zero past TAPS; weight1: [REACH,
    INNER, WIDTH]; weight2: [WIDTH, INNER]; out: [rows, KEPT + SAMPLES * WIDTH]; samples: the
    memory of the waveform; memory: that of `out`. Grid: (tiles of TILE samples, rows).
    """
    KEPT_SAMPLES: tl.constexpr = TAPS + REACH - 2
    LENGTH: tl.constexpr = SAMPLES * WIDTH
    kind = weight1.dtype.element_ty
    row = tl.program_id(1)
    t = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = t < SAMPLES
    n = tl.arange(0, WIDTH)
    inner = tl.arange(0, INNER)
    tap = tl.arange(0, TAPS_TILE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    old, new, seen = sides(memory, slot, frames, row, row >= 0, MEMORY_SIDE, MEMORY_SLOT)
    heard, kept, _ = sides(samples, slot, frames, row, row >= 0, SAMPLES_SIDE, MEMORY_SLOT)
    number = t[:, None] * WIDTH + n[None, :]
    target = out + row * (KEPT + LENGTH)
    recall(target, old, new, number, live[:, None], LENGTH, KEPT)
    w0 = tl.load(weight0 + n[:, None] * TAPS_TILE + tap[None, :])
    b0 = tl.load(bias0 + n)[None, :]
    wave = pcm + row * SAMPLES
    acc = tl.zeros((TILE, INNER), tl.float32)
    for reach in tl.static_range(REACH):
        at = t[:, None] + (reach - KEPT_SAMPLES) + tap[None, :]
        inside = live[:, None] & (tap < TAPS)[None, :]
        x = tl.load(wave + at, mask=inside & (at >= 0), other=0.0)
        x += tl.load(heard + KEPT_SAMPLES + at, mask=inside & (at < 0), other=0.0).to(tl.float32)
        x = tl.dot(x.to(kind), tl.trans(w0), input_precision=PRECISION) + b0
        # Before a stream there is nothing: not even what the convolution makes of silence.
        there = (t >= REACH - 1 - reach) | (seen > 0)
        e = tl.where(there[:, None], elu(x), 0.0).to(kind)
        w1 = tl.load(weight1 + (reach * INNER + inner)[:, None] * WIDTH + n[None, :])
        acc = tl.dot(e, tl.trans(w1), acc, input_precision=PRECISION)
    hidden = elu(acc + tl.load(bias1 + inner)[None, :]).to(kind)
    w2 = tl.load(weight2 + n[:, None] * INNER + inner[None, :])
    y = tl.dot(hidden, tl.trans(w2), input_precision=PRECISION) + tl.load(bias2 + n)[None, :]
    remember(target, new, number, live[:, None], elu(y + x), LENGTH, KEPT)
    if tl.program_id(0) == 0:
        j = tl.arange(0, KEPT_SAMPLES_TILE)
        last = SAMPLES - KEPT_SAMPLES + j
        value = tl.load(wave + last, mask=(j < KEPT_SAMPLES) & (last >= 0), other=0.0)
        if SAMPLES < KEPT_SAMPLES:
            early = (j < KEPT_SAMPLES) & (last < 0)
            value += tl.load(heard + KEPT_SAMPLES + last, mask=early, other=0.0).to(tl.float32)
        tl.store(kept + j, value.to(kept.dtype.element_ty), mask=j < KEPT_SAMPLES)


@triton.jit
def last_conv(
    source,
    weight,
    bias,
    sound,
    slot,
    frames,
    SAMPLES: tl.constexpr,
    SOURCE_ROW: tl.constexpr,
    TAPS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """The convolution that makes the waveform, in float32; the slot has had one frame more.

    source: [rows, SOURCE_ROW]; weight: [TAPS, WIDTH] float32; bias: [1] float32; sound: [rows,
    SAMPLES] float32, clamped to [-1, 1]. Grid: (tiles of TILE samples, rows).
    """
    row = tl.program_id(1)
    t = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = t < SAMPLES
    n = tl.arange(0, WIDTH)
    place = tl.load(slot + row).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros((TILE, WIDTH), tl.float32)
    for tap in tl.static_range(TAPS):
        at = (t + tap)[:, None] * WIDTH + n[None, :]
        x = tl.load(source + row * SOURCE_ROW + at, mask=live[:, None], other=0.0).to(tl.float32)
        acc += x * tl.load(weight + tap * WIDTH + n)[None, :]
    y = tl.sum(acc, 1) + tl.load(bias)
    tl.store(sound + row * SAMPLES + t, tl.minimum(tl.maximum(y, -1.0), 1.0), mask=live)
    if tl.program_id(0) == 0:
        tl.store(frames + place, tl.load(frames + place) + 1)
