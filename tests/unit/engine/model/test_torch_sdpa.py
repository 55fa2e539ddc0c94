import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_engine.attention.base import StepRows
from antiphon_engine.attention.torch_sdpa import TorchSdpa, group_by_length
from antiphon_engine.kv_tensors import KvLayout, KvTensors

BLOCK_TOKENS = 8
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 6, 2, 4
NUM_BLOCKS = 64


def make_kv(dtype=torch.float64) -> KvTensors:
    return KvTensors(
        KvLayout(
            num_layers=2,
            num_blocks=NUM_BLOCKS,
            block_tokens=BLOCK_TOKENS,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            dtype=dtype,
        )
    )


def naive(q, k, v):
    """The last queries over all keys, one head and one query at a time."""
    out = torch.empty_like(q)
    for i in range(len(q)):
        seen = len(k) - len(q) + i + 1
        for head in range(NUM_HEADS):
            kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
            weights = (k[:seen, kv_head] @ q[i, head] / HEAD_DIM**0.5).softmax(0)
            out[i, head] = weights @ v[:seen, kv_head]
    return out


class Rows:
    """Rows of given context and step lengths, with random keys, values and block tables."""

    def __init__(self, lengths, seed):
        generator = torch.Generator().manual_seed(seed)

        def randn(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.lengths = lengths
        self.k = [randn(c + s, NUM_KV_HEADS, HEAD_DIM) for c, s in lengths]
        self.v = [randn(c + s, NUM_KV_HEADS, HEAD_DIM) for c, s in lengths]
        self.q = [randn(s, NUM_HEADS, HEAD_DIM) for _, s in lengths]
        blocks = (torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1).tolist()
        self.row_slots = torch.randperm(len(lengths), generator=generator)
        self.tables = torch.zeros(len(lengths), 16, dtype=torch.int32)
        for row, (context, step) in enumerate(lengths):
            for i in range(-(-(context + step) // BLOCK_TOKENS)):
                self.tables[self.row_slots[row], i] = blocks.pop()

    def slots(self, row, first, last):
        positions = torch.arange(first, last)
        blocks = self.tables[self.row_slots[row], positions // BLOCK_TOKENS].long()
        return blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def attend(self, kv, *, gather_limit_tokens=65_536):
        spans = [(context, context + step) for context, step in self.lengths]
        for row, (context, _) in enumerate(self.lengths):
            slots = self.slots(row, 0, context)
            kv.write(1, self.k[row][:context], self.v[row][:context], slots)
        num_tokens = np.array([step for _, step in self.lengths], np.int32)
        rows = StepRows(
            num_tokens=num_tokens,
            token_starts=(np.cumsum(num_tokens) - num_tokens).astype(np.int32),
            context_tokens=np.array([context for context, _ in self.lengths], np.int32),
            slots=self.row_slots.numpy().astype(np.int32),
            block_tables=(self.tables,),
            slot_mapping=(torch.cat([self.slots(row, *span) for row, span in enumerate(spans)]),),
        )
        backend = TorchSdpa(torch.float64, gather_limit_tokens=gather_limit_tokens)
        return backend.prepare(rows, kv).attend(
            1,
            torch.cat(self.q),
            torch.cat([k[context:] for k, (context, _) in zip(self.k, self.lengths, strict=True)]),
            torch.cat([v[context:] for v, (context, _) in zip(self.v, self.lengths, strict=True)]),
        )

    def expected(self):
        return torch.cat([naive(*row) for row in zip(self.q, self.k, self.v, strict=True)])


lengths = st.lists(
    st.tuples(st.integers(0, 60), st.one_of(st.just(1), st.integers(1, 20))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(lengths=lengths, limit=st.sampled_from([8, 64, 65_536]), seed=st.integers(0, 1000))
def test_any_mix_of_rows_equals_attention_computed_one_query_at_a_time(lengths, limit, seed):
    rows = Rows(lengths, seed)

    out = rows.attend(make_kv(), gather_limit_tokens=limit)

    torch.testing.assert_close(out, rows.expected())


def test_what_lies_behind_a_context_has_no_influence():
    rows = Rows([(13, 1), (3, 1), (5, 6)], seed=5)
    kv = make_kv()
    keys, values = kv.layer(1)
    keys.fill_(1e4)
    values.fill_(1e4)

    torch.testing.assert_close(rows.attend(kv), rows.expected())


@pytest.mark.parametrize("layer", [0, 1])
def test_layers_have_memory_of_their_own(layer):
    kv = make_kv()
    ones = torch.ones(1, NUM_KV_HEADS, HEAD_DIM, dtype=torch.float64)

    kv.write(layer, ones, 2 * ones, torch.tensor([BLOCK_TOKENS + 3]))

    keys, values = kv.layer(layer)
    assert keys[1, 3].eq(1).all()
    assert values[1, 3].eq(2).all()
    assert keys.sum() == ones.sum()
    assert not any(pool.any() for pool in kv.layer(1 - layer))


@settings(max_examples=50, deadline=None)
@given(
    num_blocks=st.lists(st.integers(1, 500), min_size=1, max_size=64),
    limit=st.integers(1, 4000),
)
def test_groups_hold_each_row_once_and_keep_padding_within_bounds(num_blocks, limit):
    lengths = np.array(num_blocks, np.int32)

    groups = group_by_length(np.arange(len(lengths)), lengths, limit)

    assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
    for group in groups:
        padded = group.size * int(lengths[group].max())
        assert padded <= limit or group.size == 1
        assert padded <= limit // 16 or padded <= 2 * int(lengths[group].sum())


def test_no_rows_make_no_groups():
    assert group_by_length(np.zeros(0, np.int64), np.zeros(0, np.int32), 8) == []
