"""What kernels share."""

import triton
import triton.language as tl

from engine.cuda.launch import INTERPRETED

if INTERPRETED:

    @triton.jit
    def gdc_wait():
        pass

    @triton.jit
    def gdc_launch_dependents():
        pass

    @triton.jit
    def prefetch(addresses):
        pass

    @triton.jit
    def half(value):
        return value.to(tl.float16)

else:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[no-redef]

    @triton.jit
    def prefetch(addresses):
        """Asks for the cache lines at `addresses`, to come to L2 while the kernel waits."""
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [addresses.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def half(value):
        """e4m3 to float16, where the value is loaded.

        The compiler would rather convert what it reads back from shared memory, and read that byte
        by byte if a matrix has to be turned.
        """
        return tl.inline_asm_elementwise(
            """{
                .reg .b16 low, high;
                mov.b32 {low, high}, $2;
                cvt.rn.f16x2.e4m3x2 $0, low;
                cvt.rn.f16x2.e4m3x2 $1, high;
            }""",
            "=r,=r,r",
            [value],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )


@triton.jit
def begin(PDL: tl.constexpr):
    """Lets the next kernel start, then waits for what the ones before have written."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def rounded(value, like):
    """A float32 value as `like`'s element type holds it, in float32."""
    return value.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def to_fp8(value):
    """float32 to e4m3, saturating."""
    return tl.minimum(tl.maximum(value, -448.0), 448.0).to(tl.float8e4nv)


@triton.jit
def cell(table, slot, position, PAGES: tl.constexpr, PAGE: tl.constexpr):
    """Page and offset of a position in its slot's ring."""
    place = position % (PAGES * PAGE)
    page = tl.load(table + slot * PAGES + place // PAGE)
    return page.to(tl.int64), place % PAGE
