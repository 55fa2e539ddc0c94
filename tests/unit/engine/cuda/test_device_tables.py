"""Changes of the block table beside a naive table."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_engine.cuda.device_tables import DeviceTables

NUM_SLOTS, MAX_BLOCKS = 4, 5
CHANGES = st.tuples(
    st.integers(0, NUM_SLOTS - 1), st.integers(0, MAX_BLOCKS - 1), st.integers(0, 99)
)
STEPS = st.lists(st.lists(CHANGES, max_size=12), max_size=6)


@settings(max_examples=40)
@given(steps=STEPS, shuffle=st.randoms(use_true_random=False))
def test_table_is_what_changes_one_by_one_make_of_it(steps, shuffle):
    tables = DeviceTables(torch.device("cpu"), num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS)
    naive = np.zeros((NUM_SLOTS + 1, MAX_BLOCKS), np.int32)
    for changes in steps:
        deltas = np.array(changes, np.int32).reshape(-1, 3)
        for slot, index, block in changes:
            naive[slot, index] = block

        tables.settle(deltas)
        # A device writes in whatever order.
        order = list(range(len(deltas)))
        shuffle.shuffle(order)
        tables.change_blocks(torch.from_numpy(deltas[order]))

        assert tables.blocks_SM.tolist() == naive.tolist()


def test_ids_that_the_plan_does_not_know_come_from_their_slots():
    tables = DeviceTables(torch.device("cpu"), num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS)
    tables.set_last_tokens(torch.tensor([2, 0]).int(), torch.tensor([77, 78]).int())

    ids = tables.known_ids(torch.tensor([5, -1, -1]).int(), torch.tensor([-1, 2, 0]).int())

    assert ids.tolist() == [5, 77, 78]
    assert ids.dtype is torch.int32
