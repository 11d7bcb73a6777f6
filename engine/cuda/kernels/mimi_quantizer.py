"""Mimi's split residual quantiser, in float32."""

import triton
import triton.language as tl

from engine.cuda.kernels.common import gdc_launch_dependents, gdc_wait


@triton.jit
def winner(distance, entry, at, live, PARTS: tl.constexpr, BINS: tl.constexpr):
    """The entry at the least of a row's PARTS distances, the lowest of equals: [n] int32.

    Any entry where the distances are no numbers: one row's fault is no other's.
    """
    part = tl.arange(0, PARTS)[None, :]
    distances = tl.load(distance + at[:, None] * PARTS + part, mask=live[:, None], other=0.0)
    entries = tl.load(entry + at[:, None] * PARTS + part, mask=live[:, None], other=0)
    least = tl.min(distances, 1)
    return tl.min(tl.where(distances == least[:, None], entries, BINS - 1), 1)


@triton.jit
def nearest(
    latent,
    left,
    tables,
    half_norms,
    distance,
    entry,
    codes,
    rows,
    max_rows,
    step,
    STEP: tl.constexpr,
    BOOKS: tl.constexpr,
    BINS: tl.constexpr,
    DIM: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """The distances to one tile of a book's entries, and the least of them.

    Launch `step` is for book step + 1, the first also for book 0. All but the first begin with the
    choice that the launch before has prepared, and what it leaves of the latent.

    latent: [rows, 2, DIM], what book 0 and what the chain of the others quantises; left: [2,
    max_rows, DIM], read and written in turns; tables: [BOOKS, BINS, DIM]; half_norms: [BOOKS,
    BINS], |entry|^2 / 2; distance, entry: [BOOKS, max_rows, parts]; codes: [rows, BOOKS] int32.
    Grid: (tiles of rows * parts, 2 in the first launch). STEP: 0, 1 or 2 for the ones after.
    """
    PARTS: tl.constexpr = BINS // TILE_N
    tiles = tl.cdiv(rows, TILE_M)
    pid = tl.program_id(0)
    part = pid // tiles
    m = (pid % tiles) * TILE_M + tl.arange(0, TILE_M)
    n = part * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    live = m < rows
    book = step + 1
    if STEP == 0:
        book = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
    half_norm = tl.load(half_norms + book * BINS + n)
    if TILE_K == DIM:
        vectors = tl.load(tables + (book * BINS + n)[:, None] * DIM + k[None, :])
    if PDL:
        gdc_wait()
    if STEP > 0:
        code = winner(distance, entry, step * max_rows + m, live, PARTS, BINS)
        code = tl.where(live, code, 0)
        if part == 0:
            tl.store(codes + m * BOOKS + step, code, mask=live)
        taken = tables + (step * BINS + code)[:, None] * DIM
        after = left + ((step % 2) * max_rows + m)[:, None] * DIM
    if STEP == 2:
        source = left + (((step + 1) % 2) * max_rows + m)[:, None] * DIM
    elif STEP == 1:
        source = latent + (m * 2 + 1)[:, None] * DIM
    else:
        source = latent + (m * 2 + book)[:, None] * DIM
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    for start in tl.static_range(0, DIM, TILE_K):
        d = start + k[None, :]
        x = tl.load(source + d, mask=live[:, None], other=0.0)
        if STEP > 0:
            x -= tl.load(taken + d)
            if part == 0:
                tl.store(after + d, x, mask=live[:, None])
        if TILE_K < DIM:
            vectors = tl.load(tables + (book * BINS + n)[:, None] * DIM + d)
        acc = tl.dot(x, tl.trans(vectors), acc, input_precision=PRECISION)
    # |x - e|^2 / 2 without |x|^2 / 2, which is the same for all entries.
    distances = half_norm[None, :] - acc
    least = tl.min(distances, 1)
    lowest = tl.min(tl.where(distances == least[:, None], n[None, :], BINS - 1), 1)
    at = (book * max_rows + m) * PARTS + part
    tl.store(distance + at, least, mask=live)
    tl.store(entry + at, lowest, mask=live)


@triton.jit
def finish_codes(
    distance,
    entry,
    codes,
    slot,
    frames,
    max_rows,
    BOOKS: tl.constexpr,
    BINS: tl.constexpr,
    LAST: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The choices that no launch of `nearest` made; the slot has had one frame more.

    Those are of book 0 and of book LAST. Grid: (rows,).
    """
    row = tl.program_id(0)
    one = row + tl.arange(0, 1)
    place = tl.load(slot + row).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    for book in tl.static_range(0, LAST + 1, LAST if LAST > 0 else 1):
        code = winner(distance, entry, book * max_rows + one, one >= 0, PARTS, BINS)
        tl.store(codes + one * BOOKS + book, code)
    tl.store(frames + place, tl.load(frames + place) + 1)


@triton.jit
def dequantise(
    codes,
    table,
    upsample,
    out,
    memory,
    slot,
    frames,
    BOOKS: tl.constexpr,
    BINS: tl.constexpr,
    DIM: tl.constexpr,
    STEPS: tl.constexpr,
    MEMORY_SIDE: tl.constexpr,
    MEMORY_SLOT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A frame's latent, spread over STEPS latents with the help of the frame's before.

    codes: [rows, BOOKS] int32, taken into 0..BINS - 1; table: [BOOKS * BINS, DIM] float32;
    upsample: [2 * STEPS, DIM]; out: [rows, STEPS, DIM] float32. Grid: (rows,).
    """
    row = tl.program_id(0)
    d = tl.arange(0, DIM)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    place = tl.load(slot + row).to(tl.int64)
    parity = (tl.load(frames + place) % 2).to(tl.int64)
    side = memory + place * MEMORY_SLOT + d
    acc = tl.zeros((DIM,), tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(codes + row * BOOKS + book)
        code = tl.minimum(tl.maximum(code, 0), BINS - 1)
        acc += tl.load(table + (book * BINS + code) * DIM + d)
    latent = acc.to(memory.dtype.element_ty)
    before = tl.load(side + parity * MEMORY_SIDE).to(tl.float32)
    tl.store(side + (1 - parity) * MEMORY_SIDE, latent)
    latent = latent.to(tl.float32)
    for step in tl.static_range(STEPS):
        now = tl.load(upsample + step * DIM + d).to(tl.float32)
        after = tl.load(upsample + (STEPS + step) * DIM + d).to(tl.float32)
        tl.store(out + (row * STEPS + step) * DIM + d, latent * now + before * after)
