"""Which backend attends to chunks."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from antiphon_engine.api.errors import StartupError
from antiphon_engine.cuda.attention_backend import AttentionShape
from antiphon_engine.cuda.attention_choice import AttentionNeeds, choose_backend, open_backends
from antiphon_engine.cuda.attention_timing import ChunkTimer
from antiphon_engine.cuda.flashinfer_library import FlashInferError
from antiphon_engine.cuda.measured_choices import attention_choices
from antiphon_engine.device import CPU
from antiphon_engine.kv_tensors import KvLayout, KvTensors
from support.fake_flashinfer import FakeLibrary

OWN, OTHER = SimpleNamespace(name="triton"), SimpleNamespace(name="flashinfer")
SHAPE = AttentionShape(
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    block_tokens=32,
    dtype=torch.bfloat16,
    kv_dtype=torch.bfloat16,
)


def _missing() -> FakeLibrary:
    raise FlashInferError("FlashInfer is not installed")


def _not_built() -> FakeLibrary:
    return FakeLibrary(built=False)


def _names(wanted: str, find=FakeLibrary, *, is_fixed: bool = False) -> list[str]:
    needs = AttentionNeeds(shape=SHAPE, backend=wanted, is_fixed=is_fixed, max_rows=8)
    backends = open_backends(needs, OWN, CPU, find=find)
    return [backend.name for backend in backends]


def test_what_is_asked_for_is_taken() -> None:
    assert _names("triton") == ["triton"]
    assert _names("flashinfer") == ["flashinfer"]
    assert _names("auto") == ["triton", "flashinfer"]


@pytest.mark.parametrize("find", [_missing, _not_built])
def test_auto_does_with_what_is_there(find) -> None:
    assert _names("auto", find) == ["triton"]


@pytest.mark.parametrize(
    ("find", "is_fixed", "said"),
    [
        (_missing, False, "not installed"),
        (_not_built, False, r"not built; `antiphon build-attention --head-dim 128`"),
        (FakeLibrary, True, r"engine\.deterministic"),
    ],
)
def test_what_is_asked_for_and_cannot_be_is_refused(find, is_fixed, said) -> None:
    with pytest.raises(StartupError, match=rf"engine\.attention_backend = flashinfer.*{said}"):
        _names("flashinfer", find, is_fixed=is_fixed)


def test_tokens_of_their_own_are_computed_by_the_own_kernels() -> None:
    assert _names("auto", is_fixed=True) == ["triton"]


def _choices(directory: Path, version: str = "1"):
    return attention_choices(directory, "device", [version])


@pytest.mark.parametrize(
    ("own_ms", "other_ms", "chosen"), [(2.0, 1.0, OTHER), (1.0, 2.0, OWN), (1.0, 0.99, OWN)]
)
def test_the_faster_is_chosen_and_kept(tmp_path: Path, own_ms, other_ms, chosen) -> None:
    times = {"triton": own_ms, "flashinfer": other_ms}
    known = _choices(tmp_path)

    found = choose_backend(
        (OWN, OTHER), lambda backend: times[backend.name], known=known, key="model"
    )
    known.save()

    assert found is chosen
    # Known from now on, whatever would be measured.
    again = choose_backend((OWN, OTHER), {}.__getitem__, known=_choices(tmp_path), key="model")
    assert again is chosen
    assert "another" not in _choices(tmp_path)
    assert "model" not in _choices(tmp_path, version="2")


def test_what_cannot_be_measured_is_not_chosen_and_not_kept(tmp_path: Path) -> None:
    def fail(backend) -> float:
        raise RuntimeError(f"{backend.name} can't be launched")

    known = _choices(tmp_path)

    assert choose_backend((OWN, OTHER), fail, known=known, key="model") is OWN
    assert "model" not in known


def test_measured_prompts_take_a_whole_step_and_the_blocks_of_their_tokens() -> None:
    layout = KvLayout(
        num_layers=1,
        num_blocks=5,
        block_tokens=8,
        num_kv_heads=2,
        head_dim=16,
        dtype=torch.float32,
    )
    qkv = torch.empty(50, 8 * 16)
    timer = ChunkTimer(
        heads=None,
        kv=KvTensors(layout, torch.device("cpu")),
        qkv_TQ=qkv,
        out_TA=qkv[:, :64],
        context_tokens=20,
    )

    chunks = timer.chunks()

    rows = chunks.rows
    assert rows.num_tokens == 50
    assert rows.row_starts_R1.tolist() == [0, 20, 40, 50]
    assert rows.block_tables_SM.tolist() == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert chunks.positions_T.tolist() == [*range(20), *range(20), *range(10)]
    for row, start in enumerate((0, 20, 40)):
        for token in range(start, min(start + 20, 50)):
            block, offset = divmod(int(chunks.slot_mapping_T[token]), 8)
            position = token - start
            assert (block, offset) == (int(rows.block_tables_SM[row, position // 8]), position % 8)
    assert chunks.host.row_starts_R1.tolist() == rows.row_starts_R1.tolist()
