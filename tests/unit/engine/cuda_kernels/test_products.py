from dataclasses import replace

import pytest
import torch

from antiphon_engine.cuda.kernels.products import Product, ProductConfig, Workspace, multiply
from support import cuda_reference as reference

CONFIG = ProductConfig(block_out=32, block_in=32, num_stages=2, num_warps=4)
SPLIT = replace(CONFIG, block_out=16, num_splits=2)
ONE_ROW = replace(CONFIG, block_out=16, block_in=64, one_row=True)
SIZES = ((96, 48), (128, 64))
"""Input and output features: tiles that overhang, and tiles that don't."""


class Case:
    def __init__(self, device: torch.device, dtype: torch.dtype, num_rows: int, **kind: object):
        self.num_in, self.num_out = kind.pop("size", SIZES[0])
        rows = 2 * self.num_out if kind.get("is_gate_up") else self.num_out
        bias = torch.randn(rows, device=device, dtype=dtype) if kind.pop("bias", False) else None
        weight = (torch.randn(rows, self.num_in, device=device) * 0.1).to(dtype)
        self.product = Product(weight_NK=weight, bias_N=bias, **kind)
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
        wanted = reference.product(self.product, self.x, self.held)
        return reference.relative_error(self.run(config), wanted)


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"bias": True, "size": SIZES[1]},
        {"norm_epsilon": 1e-5},
        {"is_added": True, "bias": True},
        {"is_gate_up": True},
        {"norm_epsilon": 1e-5, "is_gate_up": True, "bias": True},
    ],
    ids="-".join,
)
@pytest.mark.parametrize(
    ("num_rows", "config"),
    [(3, CONFIG), (1, ONE_ROW), (18, replace(CONFIG, block_rows=16))],
    ids=("rows", "one_row", "tiles"),
)
def test_product_is_the_plain_one(device, dtype, tolerance, kind, num_rows, config) -> None:
    case = Case(device, dtype, num_rows, **kind)

    assert case.error(config) < tolerance


@pytest.mark.parametrize("kind", [{}, {"is_added": True, "bias": True}], ids="-".join)
@pytest.mark.parametrize(("num_rows", "one_row"), [(3, False), (1, True)])
def test_programs_that_share_input_features_sum_once(
    device, dtype, tolerance, kind, num_rows, one_row
) -> None:
    case = Case(device, dtype, num_rows, **kind)
    config = replace(ONE_ROW, num_splits=2) if one_row else SPLIT

    first, second = case.run(config), case.run(config)

    assert case.error(config) < tolerance
    assert torch.equal(first, second)


def test_product_of_a_row_is_the_same_among_others(device, dtype) -> None:
    case = Case(device, dtype, 33, norm_epsilon=1e-5, is_gate_up=True)
    config = replace(CONFIG, block_rows=16)

    together = case.run(config)

    for row in (0, 17, 32):
        alone = case.run(config, rows=slice(row, row + 1))
        assert torch.equal(alone[0], together[row])


def test_product_may_be_wider_than_its_matrix(device, dtype, tolerance) -> None:
    case = Case(device, dtype, 3)
    y = torch.empty(3, case.num_out, dtype=torch.float32, device=device)

    multiply(case.product, case.x, y, config=CONFIG, workspace=case.workspace)

    wanted = reference.product(case.product, case.x, y)
    assert reference.relative_error(y, wanted) < 1e-5


def test_product_that_needs_all_input_features_is_not_split(device, dtype) -> None:
    case = Case(device, dtype, 3, norm_epsilon=1e-5)

    assert not case.product.can_split(SPLIT)
    with pytest.raises(AssertionError):
        case.run(SPLIT)
