import pytest
import torch

from antiphon_engine.cuda.kernels.narrow_products import deinterleave, interleave
from antiphon_engine.cuda.kernels.narrow_rows import narrow_rows
from antiphon_engine.cuda.kernels.products import Product, Workspace
from antiphon_engine.cuda.step_buffers import StepBuffers
from antiphon_engine.cuda.step_products import ProductRunner
from antiphon_engine.model.narrow import NARROW, narrow_matrix
from support import cuda_reference as reference

SIZE = 192
"""No power of two."""


@pytest.mark.parametrize(("norm_epsilon", "column"), [(None, 1.0), (1e-5, 0.5)])
def test_rows_that_8_bits_hold_come_back_whole(device, norm_epsilon, column):
    powers = torch.tensor([[2.0**-9], [1.0], [2.0**9]], device=device)
    x = (torch.randn(3, SIZE, device=device) * 100).to(NARROW).float()
    x[:, 5] = 448
    x *= powers
    out = torch.empty(3, SIZE, dtype=NARROW, device=device)
    scale = torch.empty(3, device=device)

    columns = torch.full((SIZE,), column, device=device)

    narrow_rows(x, out, scale, columns_K=columns, norm_epsilon=norm_epsilon)

    found = deinterleave(out).float() * scale[:, None]
    wanted = x if norm_epsilon is None else reference.rms_norm(x, None, norm_epsilon)
    torch.testing.assert_close(found, wanted * column, rtol=1e-6, atol=0)


# The interpreter lets go of what rounding carries into the exponent.
@pytest.mark.device
def test_rows_are_rounded_to_the_nearest(device, dtype):
    x = torch.randn(30, SIZE, device=device, dtype=dtype)
    out = torch.empty(30, SIZE, dtype=NARROW, device=device)
    scale = torch.empty(30, device=device)

    narrow_rows(x, out, scale)

    wanted, wanted_scale = narrow_matrix(x)
    torch.testing.assert_close(scale, wanted_scale)
    # Numbers in the middle between two may go either way.
    is_same = deinterleave(out).float() == wanted.float()
    assert is_same.float().mean() > 0.99


def test_row_of_zeros_stays_one(device, dtype):
    out = torch.empty(1, SIZE, dtype=NARROW, device=device)
    scale = torch.empty(1, device=device)

    narrow_rows(torch.zeros(1, SIZE, device=device, dtype=dtype), out, scale, norm_epsilon=1e-5)

    assert not out.float().any()
    assert scale.isfinite().all()


class Layer:
    """What a step needs for products of many rows."""

    num_heads, num_kv_heads, head_dim, hidden_size, intermediate_size = 2, 2, 96, SIZE, 256


@pytest.mark.device
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"norm_epsilon": 1e-5, "is_gate_up": True},
        {"norm_epsilon": 1e-5, "columns": True},
        {"is_added": True, "bias": True},
    ],
    ids="-".join,
)
def test_many_rows_are_rounded_before_they_are_multiplied(device, kind):
    num_out, dtype = (256 if kind.get("is_gate_up") else SIZE), torch.bfloat16
    rows = num_out * (2 if kind.get("is_gate_up") else 1)
    bias = torch.randn(rows, device=device, dtype=dtype) if kind.pop("bias", False) else None
    columns = None
    if kind.pop("columns", False):
        columns = torch.randn(SIZE, device=device).to(dtype)
    narrow, scale = narrow_matrix(torch.randn(rows, SIZE, device=device) * 0.1)
    kind |= {"bias_N": bias, "columns_K": columns}
    wide = Product(weight_NK=narrow.float() * scale[:, None], **kind)
    product = Product(weight_NK=interleave(narrow), scale=scale, **kind)
    buffers = StepBuffers.allocate(
        Layer(), num_tokens=100, dtype=dtype, device=device, is_narrow=True
    )
    runner = ProductRunner(
        workspace=Workspace.allocate(num_partials=1, device=device), overlap=False
    )
    x = torch.randn(100, SIZE, device=device, dtype=dtype)
    y = torch.randn(100, num_out, device=device, dtype=dtype)
    rounded, by = narrow_matrix(x, columns_K=columns)
    shown = rounded.float() * by[:, None]
    if columns is not None:
        shown = shown / columns.float()
    wanted = reference.product(wide, shown, y)

    runner.run("any", product, x, y, buffers)

    assert reference.relative_error(y, wanted) < 1e-2
