"""What the KV cache's elements are, and what a block of them takes."""

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.kv_format import dtype_name, kv_cache_dtype, wide_kv_cache_dtype
from antiphon_engine.kv_tensors import NARROW, HostKv, KvLayout, KvTensors

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


def layout(dtype):
    return KvLayout(
        num_layers=3,
        num_blocks=4,
        block_tokens=8,
        num_kv_heads=2,
        head_dim=64,
        dtype=dtype,
        num_host_blocks=3,
    )


@pytest.mark.parametrize(
    ("asked", "computed", "kept"),
    [
        ("auto", FLOAT32, FLOAT32),
        ("auto", BFLOAT16, BFLOAT16),
        ("bfloat16", BFLOAT16, BFLOAT16),
        ("float8_e4m3", BFLOAT16, NARROW),
    ],
)
def test_cache_is_of_the_type_that_is_asked_for(asked, computed, kept):
    assert kv_cache_dtype(EngineConfig(kv_cache_dtype=asked), computed) is kept
    assert dtype_name(kept) == (asked if asked != "auto" else dtype_name(computed))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("fp8", r"kv_cache_dtype = fp8 is not .*: known are auto, bfloat16, float8_e4m3"),
        ("bfloat16", r"= bfloat16 is not .*computes in float32: take auto, or set engine\.dtype"),
    ],
)
def test_other_types_are_refused_by_name(asked, words):
    with pytest.raises(StartupError, match=words):
        kv_cache_dtype(EngineConfig(kv_cache_dtype=asked), FLOAT32)


def test_narrow_cache_is_refused_where_no_kernel_reads_it():
    config = EngineConfig(kv_cache_dtype="float8_e4m3")

    with pytest.raises(StartupError, match=r"not with a toaster; .* engine\.device = cuda"):
        wide_kv_cache_dtype(config, BFLOAT16, where="a toaster")


def test_narrow_blocks_take_a_byte_a_value_and_four_a_head():
    narrow, wide = layout(NARROW), layout(BFLOAT16)

    assert wide.token_bytes == 3 * 2 * 2 * 64 * 2
    assert narrow.token_bytes == 3 * 2 * 2 * (64 + 4)
    for kept in (narrow, wide):
        pools = [pool for index in range(3) for pool in KvTensors(kept).layer(index)]
        assert sum(map(torch.Tensor.nbytes.__get__, pools)) == 4 * 8 * kept.token_bytes


def test_narrow_blocks_come_back_from_the_host_bit_by_bit():
    narrow = layout(NARROW)
    kv, host = KvTensors(narrow), HostKv(narrow, pinned=False)
    shape = narrow.packed_shape(4)
    content = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16)
    kv.unpack(content, torch.arange(4))
    packed = torch.empty(narrow.packed_shape(2), dtype=narrow.stored_dtype)

    kv.pack(torch.tensor([3, 1]), packed)
    host.store(packed, torch.tensor([2, 3]))
    kv.unpack(host.load(torch.tensor([2, 3])), torch.tensor([0, 2]))
    kv.copy_blocks(torch.tensor([0]), torch.tensor([1]))

    held = torch.empty(shape, dtype=torch.int16)
    kv.pack(torch.arange(4), held)
    assert torch.equal(held, content[[3, 3, 1, 3]])
