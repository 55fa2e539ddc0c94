from dataclasses import replace

import pytest
import torch

from antiphon_engine.cuda.kernels.narrow_products import SCALE_BLOCK, deinterleave, interleave
from antiphon_engine.cuda.kernels.products import Product, ProductConfig, Workspace, multiply
from support import cuda_reference as reference

E4M3 = torch.float8_e4m3fn
CONFIG = ProductConfig(block_out=32, block_in=64, num_stages=2, num_warps=4)
TILES = replace(CONFIG, block_rows=16)
ONE_ROW = replace(CONFIG, block_out=16, block_in=128, one_row=True)
SIZES = ((192, 48), (256, 128))
"""Input and output features: tiles that overhang, and tiles that don't."""


class Case:
    """A product by e4m3, and the same by what those weights stand for."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_rows: int, **kind: object):
        self.num_in, self.num_out = kind.pop("size", SIZES[0])
        rows = 2 * self.num_out if kind.get("is_gate_up") else self.num_out
        bias = torch.randn(rows, device=device, dtype=dtype) if kind.pop("bias", False) else None
        stored = (torch.randn(rows, self.num_in, device=device) * 3).to(E4M3)
        wide, scale = stored.float(), torch.rand(rows, device=device) * 0.01
        if kind.pop("blocks", False):
            scale = torch.rand(rows // SCALE_BLOCK, self.num_in // SCALE_BLOCK, device=device) * 0.1
            wide *= scale.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
        else:
            wide *= scale[:, None]
        columns = None
        if kind.pop("columns", False):
            columns = torch.randn(self.num_in, device=device).to(dtype)
        self.wide = Product(weight_NK=wide, bias_N=bias, columns_K=columns, **kind)
        self.product = replace(self.wide, weight_NK=interleave(stored), scale=scale)
        self.x = torch.randn(num_rows, self.num_in, device=device, dtype=dtype)
        self.held = torch.randn(num_rows, self.num_out, device=device, dtype=dtype)
        self.workspace = Workspace.allocate(num_partials=1 << 14, device=device)

    def run(self, config: ProductConfig, *, rows: slice = slice(None)) -> torch.Tensor:
        held = self.held if self.product.is_added else torch.full_like(self.held, float("nan"))
        y = held[rows].clone()
        multiply(self.product, self.x[rows], y, config=config, workspace=self.workspace)
        assert not self.workspace.arrivals.any()
        return y

    def error(self, config: ProductConfig) -> float:
        wanted = reference.product(self.wide, self.x, self.held)
        return reference.relative_error(self.run(config), wanted)


@pytest.mark.parametrize(
    ("kind", "num_rows", "config"),
    [
        ({"bias": True, "is_added": True}, 3, CONFIG),
        ({"norm_epsilon": 1e-5, "is_gate_up": True}, 3, CONFIG),
        pytest.param({"norm_epsilon": 1e-5}, 18, TILES, marks=pytest.mark.device),
        ({"norm_epsilon": 1e-5, "bias": True, "size": SIZES[1]}, 1, ONE_ROW),
        ({"is_gate_up": True, "bias": True, "columns": True}, 1, ONE_ROW),
        ({"size": SIZES[1]}, 3, replace(CONFIG, block_in=256, block_out=16)),
        ({"is_added": True}, 3, replace(CONFIG, num_splits=2)),
        ({"norm_epsilon": 1e-5, "columns": True}, 3, replace(CONFIG, num_splits=2)),
        pytest.param(
            {"is_added": True, "size": SIZES[1]},
            1,
            replace(ONE_ROW, num_splits=2),
            marks=pytest.mark.device,
        ),
        ({"blocks": True, "size": SIZES[1], "is_gate_up": True, "columns": True}, 3, CONFIG),
        ({"blocks": True, "size": SIZES[1], "is_gate_up": True}, 1, ONE_ROW),
        ({"blocks": True, "size": SIZES[1]}, 3, replace(CONFIG, num_splits=2)),
    ],
)
def test_product_is_that_of_scaled_weights(device, dtype, tolerance, kind, num_rows, config):
    case = Case(device, dtype, num_rows, **kind)

    assert case.error(config) < tolerance


def test_every_weight_is_taken_exactly(device, dtype):
    every = torch.arange(256, dtype=torch.uint8, device=device).view(E4M3)
    every = torch.where(every.isnan(), torch.zeros_like(every).float(), every.float())
    stored = every.repeat(16, 1).to(E4M3)
    scale = torch.ones(16, device=device)
    product = Product(weight_NK=interleave(stored), scale=scale)
    x = torch.eye(256, device=device, dtype=dtype)
    workspace = Workspace.allocate(num_partials=1, device=device)
    y = torch.empty(16, 16, device=device)

    for rows, config in (
        (slice(0, 16), replace(CONFIG, block_out=16)),
        (slice(130, 146), CONFIG),
        (slice(9, 10), ONE_ROW),
    ):
        found = y[: len(x[rows])]
        multiply(product, x[rows], found, config=config, workspace=workspace)

        assert torch.equal(found, every[rows, None].expand(-1, 16))


@pytest.mark.device
def test_product_of_a_row_is_the_same_among_others(device, dtype):
    case = Case(device, dtype, 33, norm_epsilon=1e-5, is_gate_up=True)

    together = case.run(TILES)

    for row in (0, 32):
        alone = case.run(TILES, rows=slice(row, row + 1))
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("num_in", [64, 192, 896])
def test_interleaving_is_undone(num_in):
    weights = torch.randn(4, num_in).to(E4M3)

    pairs = interleave(weights)

    assert not torch.equal(pairs.view(torch.uint8), weights.view(torch.uint8))
    assert torch.equal(deinterleave(pairs).view(torch.uint8), weights.view(torch.uint8))
