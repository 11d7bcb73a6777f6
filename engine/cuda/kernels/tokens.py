"""Tokens: the grid's columns in, samples out. See `engine.lm.grid` and `engine.sampling`."""

import triton
import triton.language as tl

from engine.cuda.kernels.common import begin

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def embed(
    tokens,
    user,
    calls,
    slot,
    delays,
    initial,
    offsets,
    table,
    frequency,
    position,
    x,
    squares,
    cosine,
    sine,
    CHANNELS: tl.constexpr,
    BOOKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Writes the user's codes [rows, BOOKS] into the grid, and reads and embeds its column.

    tokens: [slots, CHANNELS, COLUMNS]; calls: [slots]; table: all embeddings [., WIDTH]. Leaves
    each row's position, input x [rows, WIDTH] with its sums of squares, and rotation. Grid
    (rows, WIDTH / BLOCK).
    """
    row = tl.program_id(0)
    block = tl.program_id(1)
    begin(PDL)
    owner = tl.load(slot + row)
    call = tl.load(calls + owner)
    c = block * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for channel in tl.static_range(CHANNELS):
        delay = tl.load(delays + channel)
        ring = tokens + (owner * CHANNELS + channel) * COLUMNS
        token = tl.load(ring + call % COLUMNS)
        if channel > BOOKS:
            code = tl.load(user + row * BOOKS + (channel - BOOKS - 1))
            token = tl.where(delay == 0, code, token)
            if block == 0:
                tl.store(ring + (call + delay) % COLUMNS, code)
        token = tl.where(call <= delay, tl.load(initial + channel), token)
        place = (tl.load(offsets + channel) + token).to(tl.int64)
        total += tl.load(table + place * WIDTH + c).to(tl.float32)
    value = total.to(x.dtype.element_ty)
    tl.store(x + row * WIDTH + c, value)
    value = value.to(tl.float32)
    tl.store(squares + row * STRIDE + block, tl.sum(value * value, 0))
    if block == 0:
        tl.store(position + row, call)
        pair = tl.arange(0, PAIRS)
        angle = call.to(tl.float32) * tl.load(frequency + pair)
        tl.store(cosine + row * PAIRS + pair, tl.cos(angle))
        tl.store(sine + row * PAIRS + pair, tl.sin(angle))


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def _sample(
    logits,
    row,
    owner,
    call,
    channel,
    keys,
    temperature,
    kept,
    forced,
    CARD: tl.constexpr,
    CARD_2: tl.constexpr,
    BITS: tl.constexpr,
    MADE: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """The token that a row draws from logits [rows, STRIDE], of which CARD count.

    BITS: how many leading bits of a logit, as a float32, tell it from others.
    """
    e = tl.arange(0, CARD_2)
    score = tl.load(logits + row * STRIDE + e, mask=e < CARD, other=float("-inf")).to(tl.float32)
    # What is no number is never drawn: a maximum among such may be at any place, past CARD too.
    score = tl.where(score >= float("-inf"), score, float("-inf"))
    most = tl.load(kept + owner)
    if most > 1:
        bits = score.to(tl.uint32, bitcast=True)
        order = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
        # The greatest bound that at least `most` logits reach is the last one that is kept.
        # Two bits of it at a time; the three counts share a sum.
        bound = tl.zeros((), tl.uint32)
        for step in tl.static_range(BITS // 2):
            counts = (
                (order >= (bound | (1 << (30 - 2 * step)))).to(tl.int64)
                + ((order >= (bound | (2 << (30 - 2 * step)))).to(tl.int64) << 20)
                + ((order >= (bound | (3 << (30 - 2 * step)))).to(tl.int64) << 40)
            )
            reached = tl.sum(counts, 0)
            one = ((reached & 0xFFFFF) >= most).to(tl.uint32)
            two = (((reached >> 20) & 0xFFFFF) >= most).to(tl.uint32)
            three = ((reached >> 40) >= most).to(tl.uint32)
            bound = bound | ((one + two + three) << (30 - 2 * step))
        stream = tl.load(keys + owner).to(tl.uint64, bitcast=True)
        stream = _mix(stream ^ ((call.to(tl.uint64) << 8) + channel))
        noise = _mix(stream + e.to(tl.uint64) * _GOLDEN)
        uniform = ((noise >> 41) & 0x7FFFFF).to(tl.float32)
        uniform = (uniform + 0.5) * (1.0 / (1 << 23))
        drawn = score / tl.load(temperature + owner) - tl.log(-tl.log(uniform))
        score = tl.where(order >= bound, drawn, float("-inf"))
    token = tl.argmax(score, 0, tie_break_left=True)
    given = tl.load(forced + owner * MADE + channel)
    return tl.where(given < 0, token, given)


@triton.jit(do_not_specialize=["source", "channel"])
def draw(
    logits,
    slot,
    calls,
    keys,
    temperature,
    kept,
    forced,
    made,
    inputs,
    source,
    embedding,
    x,
    squares,
    channel,
    CARD: tl.constexpr,
    CARD_2: tl.constexpr,
    BITS: tl.constexpr,
    MADE: tl.constexpr,
    LOGITS_STRIDE: tl.constexpr,
    INPUTS_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Draws the token of `channel`, and makes the input of the depformer's step `channel`.

    made: [rows, MADE]; inputs: [rows, INPUTS_STRIDE], the temporal state's part for each source
    of weights; embedding: [., WIDTH]; x: [rows, WIDTH], its sum of squares in one part.
    """
    row = tl.program_id(0)
    begin(PDL)
    owner = tl.load(slot + row)
    call = tl.load(calls + owner)
    token = _sample(
        logits, row, owner, call, channel, keys, temperature, kept, forced,
        CARD, CARD_2, BITS, MADE, LOGITS_STRIDE,
    )  # fmt: skip
    tl.store(made + row * MADE + channel, token)
    c = tl.arange(0, BLOCK)
    mask = c < WIDTH
    value = tl.load(embedding + token.to(tl.int64) * WIDTH + c, mask=mask, other=0.0)
    state = tl.load(inputs + row * INPUTS_STRIDE + source * WIDTH + c, mask=mask, other=0.0)
    value = (value.to(tl.float32) + state.to(tl.float32)).to(x.dtype.element_ty)
    tl.store(x + row * WIDTH + c, value, mask=mask)
    value = value.to(tl.float32)
    tl.store(squares + row * STRIDE, tl.sum(value * value, 0))


@triton.jit(do_not_specialize=["trash", "max_delay"])
def finish(
    logits,
    slot,
    calls,
    keys,
    temperature,
    kept,
    forced,
    made,
    tokens,
    delays,
    text,
    codes,
    heard_slot,
    trash,
    max_delay,
    CARD: tl.constexpr,
    CARD_2: tl.constexpr,
    BITS: tl.constexpr,
    MADE: tl.constexpr,
    LOGITS_STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Draws the last book's token, writes the new column, and gives the frame that is complete.

    text: [rows], -2 without a frame; codes: [rows, MADE - 1]; heard_slot: [rows], the row's slot,
    or `trash` without a frame. The row's call number goes up; its forced tokens are used up.
    """
    row = tl.program_id(0)
    begin(PDL)
    owner = tl.load(slot + row)
    call = tl.load(calls + owner)
    last: tl.constexpr = MADE - 1
    final = _sample(
        logits, row, owner, call, last, keys, temperature, kept, forced,
        CARD, CARD_2, BITS, MADE, LOGITS_STRIDE,
    )  # fmt: skip
    heard = call >= max_delay
    tl.store(heard_slot + row, tl.where(heard, owner, trash))
    for channel in tl.static_range(MADE):
        if channel == last:
            token = final
        else:
            token = tl.load(made + row * MADE + channel)
        delay = tl.load(delays + channel)
        ring = tokens + (owner * CHANNELS + channel) * COLUMNS
        before = tl.load(ring + (call + 1 + COLUMNS - max_delay + delay) % COLUMNS)
        tl.store(ring + (call + 1) % COLUMNS, token)
        given = tl.where(delay == max_delay, token, before)
        if channel == 0:
            tl.store(text + row, tl.where(heard, given, -2))
        else:
            tl.store(codes + row * last + channel - 1, tl.where(heard, given, 0))
        tl.store(forced + owner * MADE + channel, -2)
    if owner != trash:
        tl.store(calls + owner, call + 1)
