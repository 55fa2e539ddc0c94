"""8-bit floats (e4m3) in pairs, as kernels read them: 16-bit integers, the first in the low byte.

The matrix instructions' layouts are made for 16 bits. So pairs are loaded as they lie, and taken
apart into two tiles without moving bytes between threads.
"""

from typing import Final

from triton import jit, knobs
from triton import language as tl

LARGEST: Final = 448.0
"""The largest e4m3."""
LEAST: Final = 1e-12
"""What the largest of a row counts as at least, so that rows of zeros have a scale."""

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
"""Whether kernels are run on the CPU, where no device's instructions are."""


@jit
def first_of(pairs, like, FAST: tl.constexpr):
    """Returns the first of each pair, in the type of `like`.

    From e4m3 to bfloat16 quickly: sign, exponent and mantissa are moved to their places there, and
    the exponents' biases differ by 120. Subnormal numbers come out right; NaN doesn't, and isn't
    loaded.
    """
    if FAST:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 high, moved, power;
            mov.b32 power, 0x7b807b80;
            shl.b32 high, $1, 8;
            shl.b32 moved, $1, 4;
            and.b32 moved, moved, 0x07f007f0;
            lop3.b32 high, high, 0x80008000, moved, 0xea;
            mul.rn.bf16x2 $0, high, power;
            }""",
            "=r,r", [pairs], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    return (pairs & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(like.dtype)


@jit
def second_of(pairs, like, FAST: tl.constexpr):
    """As `first_of`, for the second."""
    if FAST:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 high, moved, power;
            mov.b32 power, 0x7b807b80;
            shr.b32 moved, $1, 4;
            and.b32 moved, moved, 0x07f007f0;
            lop3.b32 high, $1, 0x80008000, moved, 0xea;
            mul.rn.bf16x2 $0, high, power;
            }""",
            "=r,r", [pairs], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    return ((pairs >> 8) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(like.dtype)


@jit
def pairs_of(first, second):
    """Returns numbers of up to `LARGEST`, float32, rounded to e4m3, in pairs."""
    if INTERPRETED:
        low = first.to(tl.float8e4nv, fp_downcast_rounding="rtne").to(tl.uint8, bitcast=True)
        high = second.to(tl.float8e4nv, fp_downcast_rounding="rtne").to(tl.uint8, bitcast=True)
        pairs = (high.to(tl.int16) << 8) | low.to(tl.int16)
    else:
        # One instruction; what the compiler makes of the above was seen to lose bytes.
        pairs = tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
            "=h,r,r", [first, second], dtype=tl.int16, is_pure=True, pack=1,
        )  # fmt: skip
    return pairs
