"""Launching a kernel while the one before it still runs.

With programmatic dependent launch, a kernel's programs start as soon as all of the one before have
said so, and wait where they need what that one wrote. Until then they may read what no kernel of
the step writes: weights, and what is the step's input.

A step's first kernel waits before it lets the next one start. So whatever was launched before the
step is complete for all of its kernels, in front of their waits too.
"""

from triton import jit
from triton import language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@jit
def begin_step(OVERLAP: tl.constexpr):
    """The first thing in a step's first kernel."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@jit
def let_next_start(OVERLAP: tl.constexpr):
    """The first thing in every other kernel."""
    if OVERLAP:
        gdc_launch_dependents()


@jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Before anything is read that another kernel of the step writes, or written at all."""
    if OVERLAP:
        gdc_wait()


@jit
def prefetch(places):
    """Has the lines at these addresses brought into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [places.to(tl.int64, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def launch_options(*, overlap: bool) -> dict[str, bool]:
    """Returns what a launch says where its kernel is to start early."""
    return {"launch_pdl": True} if overlap else {}
