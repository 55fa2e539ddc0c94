import pytest
import torch

from antiphon_engine.model.narrow import NARROW, narrow_matrix


@pytest.mark.parametrize("num_rows", [3, 4100])
def test_matrix_is_near_its_scaled_rows(num_rows):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(num_rows, 32, generator=generator).bfloat16()
    weight *= torch.logspace(-6, 3, num_rows)[:, None]

    narrow, scale = narrow_matrix(weight)

    back = narrow.float() * scale[:, None]
    largest = weight.float().abs().amax(1, keepdim=True)
    assert narrow.dtype is NARROW
    assert ((back - weight.float()).abs() <= weight.float().abs() / 16 + largest * 2**-18).all()


def test_columns_are_multiplied_before_anything_is_rounded():
    weight, columns = torch.randn(4, 32).bfloat16(), torch.rand(32).bfloat16()

    narrow, scale = narrow_matrix(weight, columns_K=columns)

    wanted, wanted_scale = narrow_matrix(weight.float() * columns.float())
    assert torch.equal(narrow.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scale, wanted_scale)


def test_row_of_zeros_has_a_scale():
    narrow, scale = narrow_matrix(torch.zeros(2, 32))

    assert not narrow.float().any()
    assert (scale > 0).all()
