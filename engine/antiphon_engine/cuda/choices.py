"""How products and attention are divided among programs: defaults, and what to measure."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch

from antiphon_engine.cuda.attention_backend import AttentionShape
from antiphon_engine.cuda.kernels.paged_attention import Heads, PagedConfig
from antiphon_engine.cuda.kernels.prefill_attention import PrefillConfig
from antiphon_engine.cuda.kernels.products import Product, ProductConfig, can_scale_blocks
from antiphon_engine.cuda.kernels.spread_attention import SpreadConfig

FIXED: Final = ProductConfig(
    block_out=64, block_in=64, num_stages=4, num_warps=4, block_rows=64, prefetch_lines=8
)
"""For products that don't depend on how many rows are computed."""

_WIDE_OUT: Final = 1 << 16
"""Output features of a product that keeps a device busy by itself: the output matrix."""
_NUM_MULTIPROCESSORS: Final = 132
_LONG_IN: Final = 12288
"""Input features that leave programs many turns, however many share them."""
_SPREAD_ROWS: Final = 9
_TILED_ROWS: Final = 3
"""All but those that few programs share by a way of their own, which is captured as well."""
_PROGRAMS_AT_ONCE: Final = 4
"""Of spread attention on a multiprocessor, whose registers suffice for so many."""
_INTERPRETED_PROGRAMS: Final = 8
_LARGEST_TILE: Final = 32
_LEAST_TILE: Final = 16
"""Rows of a matrix instruction."""
_TILED_DIM: Final = 128
_TILED_BYTES: Final = 2
_WARP_QUERIES: Final = 8
"""Of a tile, whose sums a warp has registers for."""
_TILES: Final = (
    (16, 256, 4, 4, 1), (32, 128, 5, 4, 1), (32, 256, 4, 4, 1), (64, 128, 4, 4, 1),
    (64, 128, 6, 4, 1), (128, 64, 5, 4, 1), (64, 256, 3, 8, 1), (64, 128, 5, 4, 2),
    (64, 128, 4, 4, 4), (32, 256, 4, 4, 2), (16, 256, 4, 4, 2),
)  # fmt: skip
_ONE_ROW_TILES: Final = (
    (8, 512, 3, 4, 1), (16, 512, 2, 4, 1), (4, 1024, 3, 4, 1), (16, 256, 3, 4, 1),
    (32, 256, 2, 8, 1), (8, 512, 3, 4, 2),
)  # fmt: skip
_NARROW_TILES: Final = (
    (64, 256, 3, 4, 1), (64, 256, 4, 4, 1), (128, 128, 4, 8, 1), (128, 256, 2, 8, 1),
    (128, 256, 3, 8, 1), (64, 256, 3, 8, 1), (64, 128, 4, 4, 1), (64, 256, 3, 4, 2),
    (64, 256, 3, 4, 4), (64, 256, 4, 4, 4), (128, 128, 4, 8, 4), (128, 256, 2, 8, 4),
    (128, 256, 3, 8, 2), (64, 128, 4, 4, 4), (64, 128, 4, 4, 8),
)  # fmt: skip
_NARROW_ROW_TILES: Final = (
    (8, 1024, 3, 4, 1), (4, 2048, 3, 4, 1), (16, 1024, 2, 4, 1), (16, 512, 3, 4, 1),
    (8, 512, 4, 4, 1), (8, 1024, 3, 4, 2), (4, 1024, 4, 4, 1),
)  # fmt: skip
"""Output features, input features, stages, warps, splits."""


def candidates(product: Product, num_rows: int) -> list[ProductConfig]:
    """Returns what is worth measuring for a product of up to 64 rows."""
    is_one = num_rows == 1
    if product.is_narrow:
        tiles = _NARROW_ROW_TILES if is_one else _NARROW_TILES
        found = [_config(tile, one_row=is_one) for tile in tiles]
    else:
        found = [_config(tile, one_row=is_one) for tile in (_ONE_ROW_TILES if is_one else _TILES)]
    return [config for config in found if _is_sensible(product, num_rows, config)]


def default_config(product: Product, num_rows: int) -> ProductConfig | None:
    """Returns what serves where nothing was measured; None: cuBLAS, or what is plain.

    What was fastest for most matrices where it was measured, on one H200.
    """
    if product.is_narrow:
        return _default_narrow(product, num_rows)
    is_wide = product.num_out > _WIDE_OUT
    if num_rows > 64 or (is_wide and num_rows > 1):
        return None
    if num_rows == 1:
        wanted = [(16, 512, 2, 4, 1)] if is_wide else [(4, 1024, 3, 4, 1), (8, 512, 3, 4, 1)]
        if product.num_out >= 4096:
            wanted.reverse()
    else:
        wanted = [(64, 128, 4, 4, 1)]
        if product.num_out // 64 < _NUM_MULTIPROCESSORS:
            wanted.insert(0, (64, 128, 4, 4, 4))
    found = [_config(tile, one_row=num_rows == 1) for tile in wanted]
    sensible = (config for config in found if _is_sensible(product, num_rows, config))
    return next(sensible, None)


def _default_narrow(product: Product, num_rows: int) -> ProductConfig | None:
    if num_rows > 64:
        return None
    if num_rows == 1:
        wanted = [(8, 1024, 3, 4, 1), (4, 2048, 3, 4, 1), (8, 512, 4, 4, 1)]
    else:
        # Wide tiles of rows leave less room for those of weights.
        stages = 4 if num_rows <= 16 else 3
        split = [(64, 256, stages, 4, 4)] if num_rows <= 32 else []
        if 16 < num_rows <= 32 and product.num_in >= _LONG_IN:
            split.insert(0, (64, 128, 4, 4, 8))
        whole = [(64, 256, 3, 4, 1)] if num_rows <= 32 else [(128, 128, 4, 8, 1)]
        wanted = [*whole, (64, 128, 4, 4, 1)]
        if product.num_out // 64 < _NUM_MULTIPROCESSORS:
            wanted = [*split, (64, 128, 4, 4, 4), *wanted]
    found = [_config(tile, one_row=num_rows == 1) for tile in wanted]
    sensible = (config for config in found if _is_sensible(product, num_rows, config))
    return next(sensible, None)


def paged_config(num_rows: int) -> PagedConfig:
    """Returns how the attention of fewer rows than `spread_rows` is divided.

    Programs that a row's length doesn't need end at once, but each takes a place for a microsecond.
    """
    if num_rows <= 2:
        return PagedConfig(max_splits=32, min_split_tokens=64, block_tokens=128)
    return PagedConfig(max_splits=8, min_split_tokens=320, block_tokens=128)


def prefill_config(*, is_narrow: bool, is_fixed: bool) -> PrefillConfig:
    """Returns how the attention of chunks is divided; `is_narrow`: over 8-bit floats."""
    if is_narrow:
        # They are widened in registers, which leaves fewer for what is under way.
        return PrefillConfig(num_stages=2, one_loop=is_fixed)
    return PrefillConfig(one_loop=is_fixed)


def spread_rows(tile_tokens: int) -> int:
    """Returns from how many rows on programs share all of them evenly: they keep the device busy.

    `tile_tokens` as in `SpreadConfig`.
    """
    return _TILED_ROWS if tile_tokens else _SPREAD_ROWS


def tile_tokens(shape: AttentionShape, *, has_copy_engine: bool) -> int:
    """Returns of how many tokens the tiles are that decodes have brought; 0: none are.

    Matrix instructions take tiles as they lie, so their elements are of 16 bits. Of heads of 128
    features they were faster wherever they were measured; of others they haven't been.
    """
    is_fit = shape.head_dim == _TILED_DIM and shape.kv_dtype.itemsize == _TILED_BYTES
    tokens = math.gcd(shape.block_tokens, _LARGEST_TILE)
    return tokens if has_copy_engine and is_fit and tokens >= _LEAST_TILE else 0


def spread_config(
    device: torch.device, *, heads: Heads, is_narrow: bool = False, tile_tokens: int = 0
) -> SpreadConfig:
    """Returns how the attention of `spread_rows` and more is divided: as many programs as fit.

    Of tiles, one warp has enough to do, and waits for no other. Else four warps divide what is read
    of heads of 128 features. Steps with heads of 64, which are half as much, took 14 to 18 % longer
    so; and of 8-bit floats attention took half as long again, while more tokens may be under way in
    as many bytes.
    """
    if device.type != "cuda":
        return SpreadConfig(num_programs=_INTERPRETED_PROGRAMS)
    num_multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    config = SpreadConfig(num_programs=_PROGRAMS_AT_ONCE * num_multiprocessors, num_warps=2)
    if tile_tokens:
        config = replace(config, tile_tokens=tile_tokens, num_stages=4)
        is_small = config.num_places(heads) <= _WARP_QUERIES
        return replace(config, num_warps=1) if is_small else config
    if is_narrow:
        return replace(config, num_stages=5)
    return replace(config, num_warps=4) if heads.head_dim >= 128 else config


def _config(tile: tuple[int, int, int, int, int], *, one_row: bool = False) -> ProductConfig:
    block_out, block_in, num_stages, num_warps, num_splits = tile
    return ProductConfig(
        block_out=block_out,
        block_in=block_in,
        num_stages=num_stages,
        num_warps=num_warps,
        num_splits=num_splits,
        one_row=one_row,
    )


def _is_sensible(product: Product, num_rows: int, config: ProductConfig) -> bool:
    if config.num_splits > 1 and not product.can_split(config):
        return False
    if product.is_gate_up and config.block_out == 128 and not product.is_narrow:
        return False
    if num_rows > 16 and config.block_out < 32:
        return False
    if product.is_block_scaled and not can_scale_blocks(product, config):
        return False
    if _shared_bytes(product, num_rows, config) > _SHARED_BYTES:
        return False
    is_even = product.num_out % config.block_out == 0
    return is_even and product.num_in % (config.block_in * config.num_splits) == 0


_SHARED_BYTES: Final = 220 << 10
"""What a program may take of a multiprocessor's shared memory."""
_NARROW_ROW_BYTES: Final = 2
"""Of an element of the rows that are multiplied by 8-bit weights."""


def _shared_bytes(product: Product, num_rows: int, config: ProductConfig) -> int:
    if config.one_row:
        return 0
    rows = max(16, 1 << (num_rows - 1).bit_length())
    weights = config.block_out * (2 if product.is_gate_up else 1)
    weight_bytes = product.weight_NK.element_size()
    row_bytes = _NARROW_ROW_BYTES if product.is_narrow else weight_bytes
    return config.num_stages * config.block_in * (rows * row_bytes + weights * weight_bytes)


def model_key(
    products: Mapping[str, Product], *, num_layers: int, overlap: bool, block_tokens: int
) -> str:
    """Returns what stands for a model's shape among the measured choices."""
    parts: list[object] = [num_layers, overlap, block_tokens]
    for kind, product in products.items():
        is_plain = product.norm_epsilon is None and product.bias_N is None
        parts += [kind, *product.weight_NK.shape, product.weight_NK.dtype, is_plain]
        if product.is_block_scaled:
            parts.append("blocks")
        if product.columns_K is not None:
            parts.append("columns")
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:16]
