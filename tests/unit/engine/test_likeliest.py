import pytest
import torch

from antiphon_engine.likeliest import likeliest_ids

WIDTHS = [1, 5, 256, 512, 513, 600, 768, 1025, 4999]


def rows_of(width, *, distinct):
    """Rows with many equals where few values are distinct."""
    generator = torch.Generator().manual_seed(width + distinct)
    return torch.randint(distinct, (40, width), generator=generator).float()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("distinct", [1, 3, 50, 100_000])
def test_likeliest_is_the_first_of_the_largest(width, distinct):
    rows = rows_of(width, distinct=distinct)

    ids = likeliest_ids(rows)

    assert ids.tolist() == [row.index(max(row)) for row in rows.tolist()]


@pytest.mark.parametrize("width", WIDTHS)
def test_likeliest_where_all_but_one_are_minus_infinity(width):
    rows = torch.full((width, width), float("-inf")).fill_diagonal_(0.0)[:700]

    assert likeliest_ids(rows).tolist() == list(range(len(rows)))
