"""What attention kernels do with heads before they attend: normalise, rotate.

Features of a head are rotated in pairs, one of its first half and one of its second. Each place
reads its partner too, so heads stay in one piece.

Shape suffixes: N heads of a tile, D head dimension.
"""

from triton import jit
from triton import language as tl


@jit
def rotation(cosines, sines, position, D: tl.constexpr):
    """Returns what features are multiplied with, and what their partners are: [D] each.

    `cosines` and `sines` are float32 [positions, D / 2].
    """
    feature = tl.arange(0, D)
    place = position * (D // 2) + feature % (D // 2)
    sine = tl.load(sines + place)
    return tl.load(cosines + place), tl.where(feature < D // 2, -sine, sine)


@jit
def norm_weight(weights, D: tl.constexpr, NORM: tl.constexpr):
    """Returns a norm's weights, and those of the features' partners: [D] each."""
    feature = tl.arange(0, D)
    if NORM:
        own = tl.load(weights + feature).to(tl.float32)
        partner = tl.load(weights + (feature + D // 2) % D).to(tl.float32)
    else:
        own = tl.full([D], 1.0, tl.float32)
        partner = own
    return own, partner


@jit
def rotated_heads(
    heads_N, mask_N, own_D, partner_D, cosine_D, sine_D, epsilon,
    D: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Returns heads at these addresses, normalised and rotated: float32 [N, D]."""
    feature = tl.arange(0, D)
    mask = mask_N[:, None]
    own = tl.load(heads_N[:, None] + feature[None, :], mask=mask, other=0.0).to(tl.float32)
    partner = tl.load(
        heads_N[:, None] + ((feature + D // 2) % D)[None, :], mask=mask, other=0.0
    ).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, 1) / D + epsilon)[:, None]
        own *= scale * own_D[None, :]
        partner *= scale * partner_D[None, :]
    return own * cosine_D[None, :] + partner * sine_D[None, :]
