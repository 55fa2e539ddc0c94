"""The copies of a step, in main memory. What CUDA makes of them needs a device to be seen."""

import numpy as np
import pytest
import torch

from antiphon_engine import _native
from antiphon_engine.device import CPU
from antiphon_engine.kv_copies import PIECE_BLOCKS, make_copier, read_copies
from antiphon_engine.kv_tensors import HostKv, KvLayout, KvTensors

NUM_BLOCKS, NUM_HOST_BLOCKS = 64, 48
OFFLOAD, ONLOAD, ON_WRITE = _native.COPY_OFFLOAD, _native.COPY_ONLOAD, _native.COPY_ON_WRITE
DEVICE, HOST = _native.TIER_DEVICE, _native.TIER_HOST
WHOLE = 8
LAYOUT = KvLayout(
    num_layers=3,
    num_blocks=NUM_BLOCKS,
    block_tokens=WHOLE,
    num_kv_heads=2,
    head_dim=4,
    dtype=torch.float32,
    num_host_blocks=NUM_HOST_BLOCKS,
)


class Tiers:
    """Both tiers with random content and the copier between them, and what they should hold."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self._kv = KvTensors(LAYOUT)
        self._host = HostKv(LAYOUT, pinned=False)
        self._copier = make_copier(self._kv, self._host, CPU)
        self.device = torch.randn(LAYOUT.packed_shape(NUM_BLOCKS), generator=generator)
        self.host = torch.randn(LAYOUT.packed_shape(NUM_HOST_BLOCKS + 1), generator=generator)
        self._kv.unpack(self.device, torch.arange(NUM_BLOCKS))
        self._host.store(self.host[1:], torch.arange(1, NUM_HOST_BLOCKS + 1))

    def carry_out(self, *ops):
        self._copier.carry_out(read_copies(np.array(ops, np.int32))).synchronize()

    def expect(self, *ops):
        """Does one op after another to what the tiers should hold."""
        for kind, tier, source, target, _ in ops:
            read = self.host if tier == HOST else self.device
            written = self.host if kind == OFFLOAD else self.device
            written[target] = read[source].clone()

    def check(self):
        held = torch.empty_like(self.device)
        self._kv.pack(torch.arange(NUM_BLOCKS), held)
        assert torch.equal(held, self.device)
        assert torch.equal(self._host.load(torch.arange(1, NUM_HOST_BLOCKS + 1)), self.host[1:])


@pytest.fixture
def tiers():
    return Tiers()


@pytest.mark.parametrize(
    "op",
    [
        (OFFLOAD, DEVICE, 5, 1, WHOLE),
        (ONLOAD, HOST, NUM_HOST_BLOCKS, 7, WHOLE),
        (ON_WRITE, DEVICE, 9, 3, WHOLE),
        (ON_WRITE, HOST, 2, 4, WHOLE),
    ],
    ids=("offload", "onload", "device-on-write", "host-on-write"),
)
def test_one_copy_changes_its_target_alone(tiers, op):
    tiers.carry_out(op)

    tiers.expect(op)
    tiers.check()


def test_groups_are_carried_out_in_order_however_the_plan_lists_them(tiers):
    # Block 5 goes to the host, takes another block's content from there, and is copied on.
    offload = (OFFLOAD, DEVICE, 5, 10, WHOLE)
    onload = (ONLOAD, HOST, 20, 5, WHOLE)
    on_write = (ON_WRITE, DEVICE, 5, 6, WHOLE)

    tiers.carry_out(on_write, onload, offload)

    tiers.expect(offload, onload, on_write)
    tiers.check()


def test_a_block_can_come_back_in_the_step_in_which_it_left(tiers):
    ops = [(OFFLOAD, DEVICE, 5, 10, WHOLE), (ONLOAD, HOST, 10, 8, WHOLE)]

    tiers.carry_out(*ops)

    tiers.expect(*ops)
    tiers.check()


def test_more_copies_than_a_piece_are_all_carried_out(tiers):
    num = 2 * PIECE_BLOCKS + 3
    offloads = [(OFFLOAD, DEVICE, 1 + i, 1 + (i * 5) % num, WHOLE) for i in range(num)]

    tiers.carry_out(*offloads)
    tiers.expect(*offloads)
    onloads = [(ONLOAD, HOST, 1 + i, NUM_BLOCKS - 1 - i, WHOLE) for i in range(num)]
    tiers.carry_out(*onloads)
    tiers.expect(*onloads)

    tiers.check()


def test_the_wanted_tokens_of_a_partial_copy_arrive(tiers):
    tiers.carry_out((ON_WRITE, DEVICE, 5, 6, 3), (ON_WRITE, HOST, 7, 8, 5))

    held = torch.empty_like(tiers.device)
    tiers._kv.pack(torch.arange(NUM_BLOCKS), held)
    assert torch.equal(held[6, :, :3], tiers.device[5, :, :3])
    assert torch.equal(held[8, :, :5], tiers.host[7, :, :5])
    untouched = [i for i in range(NUM_BLOCKS) if i not in (6, 8)]
    assert torch.equal(held[untouched], tiers.device[untouched])
