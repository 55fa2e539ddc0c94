"""Attention of chunks by FlashInfer, which a fake stands for where there is no device."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon_engine.cuda.attention_backend import AttentionShape
from antiphon_engine.cuda.flashinfer_attention import FlashInferBackend
from antiphon_engine.cuda.flashinfer_library import (
    FlashInferError,
    FlashInferLibrary,
    PrefillLibrary,
)
from antiphon_engine.cuda.kernels.paged_attention import Heads
from antiphon_engine.cuda.step_attention import AttentionMaker
from antiphon_engine.cuda.step_rows import HostRows, MixedRows
from antiphon_engine.cuda.triton_attention import TritonBackend, TritonOptions
from antiphon_engine.device import Device
from support import cuda_reference as reference
from support.fake_flashinfer import FakeLibrary, fake_package

BLOCK_TOKENS, NUM_SLOTS, WIDTH = 16, 4, 4
ROWS = ((2, 9, 1), (0, 0, 3), (3, 20, 4), (1, 33, 1))
"""Slots, contexts and new tokens: a decode, and chunks of which one has a single token."""


class Step:
    """A pool, its table and rows over it."""

    def __init__(self, device: torch.device, dtype: torch.dtype, heads: tuple[int, int, int]):
        angles = torch.randn(64, heads[2] // 2, device=device)
        self.heads = Heads(
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=heads[2],
            cosines=angles.cos(),
            sines=angles.sin(),
            q_norm_D=None,
            k_norm_D=None,
            norm_epsilon=1e-5,
        )
        self.device, self.dtype = device, dtype
        shape = (NUM_SLOTS * WIDTH + 1, BLOCK_TOKENS, heads[1], heads[2])
        self.pools = [torch.randn(2, *shape, device=device).to(dtype) for _ in range(2)]
        """Keys and values of two layers."""
        blocks = torch.randperm(NUM_SLOTS * WIDTH, device=device).int() + 1
        self.tables = blocks.view(NUM_SLOTS, WIDTH)

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape.of(
            self.heads, block_tokens=BLOCK_TOKENS, dtype=self.dtype, kv_dtype=self.dtype
        )

    def maker(self, library: PrefillLibrary | None = None) -> AttentionMaker:
        options = TritonOptions(is_fixed=False, overlap=False)
        own = TritonBackend.allocate(self.heads, options, max_rows=NUM_SLOTS, device=self.device)
        device = Device(self.device.type)
        other = library and FlashInferBackend(library, own, self.shape, device)
        return AttentionMaker.allocate(
            [other or own], max_rows=NUM_SLOTS, is_fixed=False, device=self.device
        )

    def rows(self, rows=ROWS, *, num_decode_rows: int = 1, is_captured: bool = False) -> MixedRows:
        slots, contexts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
        starts = np.append(0, counts.cumsum()).astype(np.int32)
        row = np.repeat(np.arange(len(rows)), counts)
        positions = contexts[row] + np.arange(starts[-1]) - starts[row]
        blocks = self.tables.cpu().numpy()[slots[row], positions // BLOCK_TOKENS]
        mapping = blocks.astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.device)

        return MixedRows(
            input_ids_T=there(positions.astype(np.int32)),
            positions_T=there(positions.astype(np.int32)),
            slot_mapping_T=there(mapping),
            row_starts_R1=there(starts),
            contexts_R=there(contexts),
            slots_R=there(slots),
            block_tables_SM=self.tables,
            num_decode_rows=num_decode_rows,
            host=None if is_captured else HostRows(
                row_starts_R1=starts, contexts_R=contexts, slots_R=slots
            ),
        )  # fmt: skip

    def attend(self, attention, *, num_tokens: int) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """Returns two layers' attention, with what was projected and the pools behind it."""
        generator = torch.Generator(self.device).manual_seed(3)
        found = []
        for pools in self.pools:
            size = (num_tokens, self.heads.width)
            qkv = torch.randn(size, device=self.device, generator=generator).to(self.dtype)
            projected, pools_after = qkv.clone(), pools.clone()
            out = torch.full(
                (num_tokens, self.heads.num_heads * self.heads.head_dim),
                float("nan"),
                device=self.device,
                dtype=self.dtype,
            )
            attention.attend(self.heads, tuple(pools_after), qkv, out)
            found.append((out, (projected, pools_after)))
        return found


@pytest.fixture
def step(device) -> Step:
    return Step(device, torch.float32, (4, 2, 16))


def test_a_step_is_planned_once_behind_its_single_tokens(step) -> None:
    library = FakeLibrary()

    step.maker(library).for_rows(step.rows())

    assert [plan for wrapper in library.wrappers for plan in wrapper.plans] == [
        {
            "starts": [0, 3, 7, 8],
            "block_starts": [0, 1, 3, 6],
            "blocks": [*step.tables[0, :1], *step.tables[3, :2], *step.tables[1, :3]],
            "last_tokens": [3, 8, 2],
            "heads": (4, 2, 16),
            "block_tokens": BLOCK_TOKENS,
        }
    ]


def test_layers_attend_by_the_plan_of_their_step_whatever_was_planned_since(step) -> None:
    library = FakeLibrary()
    maker = step.maker(library)

    attention = maker.for_rows(step.rows(ROWS[1:], num_decode_rows=0))
    for _ in range(2):
        maker.for_rows(step.rows([(1, 0, 1), (3, 2, 40), (0, 0, 2)]))
    found = step.attend(attention, num_tokens=8)

    assert library.wrappers[0].num_runs == len(found)
    for out, (qkv, pools) in found:
        q, _, _ = reference.prepared_heads(step.heads, qkv, step.rows(ROWS[1:]).positions_T)
        first = 0
        for slot, context, count in ROWS[1:]:
            length, span = context + count, slice(first, first + count)
            keys, values = (reference.gathered(pool, step.tables[slot], length) for pool in pools)
            wanted = reference.attention(q[span], keys, values, context=context)
            assert reference.relative_error(out[span], wanted.flatten(1)) < 2e-5
            first += count


def test_what_is_captured_or_has_single_tokens_is_left_to_the_own_kernels(step) -> None:
    library = FakeLibrary()
    maker = step.maker(library)

    maker.for_rows(step.rows(is_captured=True))
    maker.for_rows(step.rows(ROWS[:1]))

    assert not any(wrapper.plans for wrapper in library.wrappers)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 96}, "heads of 96 features: 64, 128, 256"),
        ({"dtype": torch.float32}, "type float32"),
        ({"kv_dtype": torch.float8_e4m3fn}, "KV cache of type float8_e4m3fn"),
    ],
    ids=str,
)
def test_shapes_that_it_does_not_serve_are_named(changes, said) -> None:
    shape = AttentionShape(
        **{
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 128,
            "block_tokens": 32,
            "dtype": torch.bfloat16,
            "kv_dtype": torch.bfloat16,
        }
        | changes
    )

    with pytest.raises(FlashInferError, match=said):
        FlashInferBackend.open(None, shape, Device("cpu"), FakeLibrary)


def test_kernels_that_are_not_built_are_not_built_by_a_start(tmp_path: Path) -> None:
    library = FlashInferLibrary(fake_package(tmp_path), capability=(9, 0))

    assert not library.use_built(128)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("capability", "variant"), [((9, 0), "fa3"), ((10, 0), "fa2")])
def test_built_kernels_are_taken_as_they_are(tmp_path: Path, capability, variant) -> None:
    package = fake_package(tmp_path)
    FlashInferLibrary(package, capability=capability).build(128, lambda *progress: None)
    library = FlashInferLibrary(fake_package(tmp_path), capability=capability)

    assert library.use_built(128)
    assert not library.use_built(64)
    assert [path.name for path in (tmp_path / "here").iterdir()] == [f"prefill_{variant}_128"]
    wrapper = library.make_wrapper(torch.device("cpu"))
    assert wrapper.backend == variant
    assert (wrapper.workspace_bytes > 1) == (variant == "fa2")


def test_a_build_that_fails_is_told(tmp_path: Path) -> None:
    library = FlashInferLibrary(fake_package(tmp_path, fails=True), capability=(9, 0))

    with pytest.raises(FlashInferError, match=r"can't be built: Ninja build failed"):
        library.build(128, lambda *progress: None)


@pytest.mark.device
@pytest.mark.parametrize("heads", [(8, 2, 128), (4, 4, 128)], ids=str)
def test_the_installed_one_attends_as_the_own_kernels_do(device, heads) -> None:
    step = Step(device, torch.bfloat16, heads)
    try:
        library = FlashInferLibrary.find()
    except FlashInferError as error:
        pytest.skip(str(error))
    if not library.use_built(heads[2]):
        pytest.skip("its kernels are not built")
    num_tokens = sum(count for _, _, count in ROWS)
    maker = step.maker(library)
    wanted = step.attend(step.maker().for_rows(step.rows()), num_tokens=num_tokens)

    found = step.attend(maker.for_rows(step.rows()), num_tokens=num_tokens)
    first = maker.for_rows(step.rows())
    for _ in range(3):
        maker.for_rows(step.rows([(1, 0, 1), (3, 2, 40), (0, 0, 2)]))
    late = step.attend(first, num_tokens=num_tokens)

    for (own, _), (other, _), (again, _) in zip(wanted, found, late, strict=True):
        assert reference.relative_error(other, own) < 1e-2
        assert torch.equal(again, other)
