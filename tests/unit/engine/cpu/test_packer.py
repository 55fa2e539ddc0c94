"""Rows that several threads pack."""

import itertools

import pytest

from antiphon_engine.cpu.weights import PANEL_ROWS, Packer


@pytest.mark.parametrize("lead", [0, 5, 16, 40])
@pytest.mark.parametrize("num_rows", [1, 9, 16, 100, 1000])
def test_every_row_is_packed_once_and_no_two_slices_share_a_panel(num_rows, lead):
    packer = Packer(2)
    packed = []

    packer.pack(num_rows, 1 << 15, packed.append, lead=lead)

    packer.close()
    packed.sort(key=lambda rows: rows.start)
    assert [row for rows in packed for row in range(rows.start, rows.stop)] == list(range(num_rows))
    for before, behind in itertools.pairwise(packed):
        assert (lead + before.stop - 1) // PANEL_ROWS < (lead + behind.start) // PANEL_ROWS
