from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antiphon_engine.cuda.attention_backend import AttentionShape
from antiphon_engine.cuda.buckets import decode_buckets
from antiphon_engine.cuda.choices import (
    FIXED,
    candidates,
    default_config,
    paged_config,
    spread_rows,
    tile_tokens,
)
from antiphon_engine.cuda.kernels.paged_attention import PagedConfig
from antiphon_engine.cuda.kernels.products import Product, can_scale_blocks
from antiphon_engine.cuda.measured_choices import product_choices
from antiphon_engine.cuda.step_products import ROW_BOUNDS, row_bound


def _product(num_out: int, num_in: int, **kind: object) -> Product:
    return Product(weight_NK=torch.empty(num_out, num_in, device="meta"), **kind)


def test_choices_come_back_for_the_device_that_they_were_measured_on(tmp_path: Path) -> None:
    choices = product_choices(tmp_path / "new", "one device")
    choices["model 1 qkv"] = FIXED
    choices["model 1 head"] = None
    choices.save()

    again = product_choices(tmp_path / "new", "one device")
    other = product_choices(tmp_path / "new", "another device")

    assert again["model 1 qkv"] == FIXED
    assert again["model 1 head"] is None
    assert "model 16 qkv" not in again
    assert "model 1 qkv" not in other


def test_choices_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    choices = product_choices(tmp_path, "device")
    choices["model 1 qkv"] = FIXED
    choices.save()
    (file,) = tmp_path.iterdir()

    for broken in ('{"model 1 qkv": {"block_out": "wide"}}', '{"model', "[]"):
        file.write_text(broken)
        assert "model 1 qkv" not in product_choices(tmp_path, "device")


def test_choices_without_a_directory_are_kept_nowhere(tmp_path: Path) -> None:
    choices = product_choices(None, "device")
    choices["model 1 qkv"] = None

    choices.save()

    assert "model 1 qkv" in choices


def test_one_choice_holds_up_to_the_next_bound() -> None:
    assert [row_bound(num_rows) for num_rows in (1, 2, 16, 17, 64, 65)] == [1, 16, 16, 32, 64, None]


@pytest.mark.parametrize("tile_tokens", [0, 32])
@pytest.mark.parametrize("max_rows", [1, 3, 7, 64, 512])
def test_no_number_of_rows_needs_a_kernel_that_captured_steps_have_not(
    max_rows: int, tile_tokens: int
) -> None:
    def kernel(num_rows: int) -> PagedConfig | None:
        return paged_config(num_rows) if num_rows < spread_rows(tile_tokens) else None

    captured = {kernel(num_rows) for num_rows in decode_buckets(max_rows)}

    # What is compiled at a step that is launched part by part holds up all others for a second.
    assert {kernel(num_rows) for num_rows in range(1, max_rows + 1)} <= captured


def test_candidates_divide_a_product_evenly_and_split_only_what_is_linear() -> None:
    products = (
        _product(1024, 3072, is_added=True),
        _product(2 * 4864, 896, norm_epsilon=1e-6, is_gate_up=True),
        _product(151936, 1024),
    )

    for product in products:
        for bound in ROW_BOUNDS:
            for config in candidates(product, bound):
                assert product.num_out % config.block_out == 0
                assert product.num_in % (config.block_in * config.num_splits) == 0
                assert config.num_splits == 1 or product.can_split(config)
                assert config.one_row == (bound == 1)


def test_candidates_for_8_bit_weights_stay_within_blocks_of_scales() -> None:
    by_rows = replace(_product(2048, 4096), scale=torch.empty(2048))
    by_blocks = replace(_product(2048, 4096), scale=torch.empty(16, 32))

    for bound in ROW_BOUNDS:
        assert candidates(by_rows, bound)
        assert candidates(by_blocks, bound)
        assert all(can_scale_blocks(by_blocks, config) for config in candidates(by_blocks, bound))
        assert default_config(by_rows, bound) in candidates(by_rows, bound)
        assert default_config(by_blocks, bound) in candidates(by_blocks, bound)


def test_products_of_no_known_size_are_left_to_the_library() -> None:
    odd = _product(100, 60)

    assert candidates(odd, 8) == []
    assert default_config(odd, 1) is None
    assert default_config(_product(1024, 1024), 65) is None


@pytest.mark.parametrize(
    ("block_tokens", "head_dim", "kv_dtype", "tokens"),
    [
        (32, 128, torch.bfloat16, 32),
        (16, 128, torch.bfloat16, 16),
        (48, 128, torch.bfloat16, 16),
        (128, 128, torch.float16, 32),
        # Heads for which nothing was measured.
        (32, 64, torch.bfloat16, 0),
        # Fewer than a matrix instruction has rows.
        (8, 128, torch.bfloat16, 0),
        (32, 128, torch.float32, 0),
        (32, 128, torch.float8_e4m3fn, 0),
    ],
)
def test_tiles_divide_blocks_and_fill_matrix_instructions(
    block_tokens, head_dim, kv_dtype, tokens
) -> None:
    shape = AttentionShape(
        num_heads=8,
        num_kv_heads=2,
        head_dim=head_dim,
        block_tokens=block_tokens,
        dtype=torch.bfloat16,
        kv_dtype=kv_dtype,
    )

    assert tile_tokens(shape, has_copy_engine=True) == tokens
    assert tile_tokens(shape, has_copy_engine=False) == 0
