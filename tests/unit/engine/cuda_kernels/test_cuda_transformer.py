import json
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from antiphon_engine.attention.base import StepRows
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.cuda.step_rows import DecodeRows, HostRows, MixedRows
from antiphon_engine.cuda.supported_models import supports
from antiphon_engine.cuda.transformer import CudaSettings, CudaTransformer
from antiphon_engine.kv_tensors import NARROW, KvLayout, KvTensors
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import ModelConfig, parse_model_config
from antiphon_engine.model.layers import RmsNorm
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.narrow import narrow_matrix
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.transformer import Transformer
from antiphon_engine.model.transformer_weights import weight_targets
from support.narrow_checkpoints import narrow_checkpoint

BLOCK_TOKENS, NUM_BLOCKS, NUM_SLOTS = 16, 4, 4
STEPS = ([3, 15, 1], [1, 1, 2], [1, 1, 1])
"""Tokens of each of three rows: chunks, decodes beside a chunk, decodes alone."""
VOCABULARY_SIZE = 256
FAMILIES = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": True,
        "num_hidden_layers": 1,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "wide_heads": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "blocks": {
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 32,
        "num_key_value_heads": 4,
        "hidden_size": 128,
        "intermediate_size": 256,
    },
}


class Harness(ABC):
    """A model with a cache of its own, and the text of every slot."""

    def __init__(
        self, model, config: ModelConfig, device: torch.device, kv_dtype=torch.float32
    ) -> None:
        self.model = model
        layout = KvLayout(
            num_layers=config.num_layers,
            num_blocks=NUM_SLOTS * NUM_BLOCKS + 1,
            block_tokens=BLOCK_TOKENS,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=kv_dtype,
        )
        self.kv = KvTensors(layout, device)
        self.device = device
        generator = torch.Generator().manual_seed(5)
        self.text = torch.randint(0, VOCABULARY_SIZE, (NUM_SLOTS, 64), generator=generator)
        blocks = torch.randperm(NUM_SLOTS * NUM_BLOCKS, generator=generator) + 1
        self.tables = blocks.view(NUM_SLOTS, NUM_BLOCKS).int().to(device)

    def batch(self, slots: list[int], contexts: list[int], counts: list[int]) -> StepBatch:
        row = torch.repeat_interleave(torch.tensor(slots), torch.tensor(counts))
        spans = zip(contexts, counts, strict=True)
        position = torch.cat([torch.arange(begin, begin + count) for begin, count in spans])
        block = self.tables[row.to(self.device), position.to(self.device) // BLOCK_TOKENS]
        mapping = block.long() * BLOCK_TOKENS + position.to(self.device) % BLOCK_TOKENS
        return StepBatch(
            input_ids_T=self.text[row, position].int().to(self.device),
            positions_T=position.int().to(self.device),
            rows=StepRows(
                num_tokens=np.array(counts, np.int32),
                token_starts=np.cumsum([0, *counts[:-1]]).astype(np.int32),
                context_tokens=np.array(contexts, np.int32),
                slots=np.array(slots, np.int32),
                block_tables=(self.tables,),
                slot_mapping=(mapping,),
            ),
            kv=self.kv,
        )

    def step(self, slots: list[int], contexts: list[int], counts: list[int]) -> Tensor:
        """Returns the logits behind each row's last token."""
        last = torch.tensor(counts, device=self.device).cumsum(0) - 1
        return self.logits(self.batch(slots, contexts, counts), last).clone()

    @abstractmethod
    def logits(self, batch: StepBatch, places: Tensor) -> Tensor:
        """Returns the logits behind some of the tokens."""


class Reference(Harness):
    """By PyTorch's operators."""

    def logits(self, batch: StepBatch, places: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(self.model.hidden_states(batch), places)
        return logits


class Own(Harness):
    """By the kernels."""

    def logits(self, batch: StepBatch, places: Tensor) -> Tensor:
        self.model.bind(self.kv)
        logits: Tensor = self.model.logits(self.model.forward(mixed_rows(batch))[places])
        return logits

    def decode(self, slots: list[int], contexts: list[int]) -> Tensor:
        """As `step` for rows of one token, by the path that is captured, with a padding row."""
        logits = torch.full((len(slots) + 1, VOCABULARY_SIZE), float("nan"), device=self.device)

        def ints(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=self.device)

        ids = self.text[slots, contexts].tolist()
        self.model.bind(self.kv)
        self.model.decode(
            DecodeRows(
                input_ids_B=ints([*ids, 0]),
                positions_B=ints([*contexts, -1]),
                slots_B=ints([*slots, NUM_SLOTS - 1]),
                block_tables_SM=self.tables,
                logits_BV=logits,
            )
        )
        return logits[:-1]


def mixed_rows(batch: StepBatch) -> MixedRows:
    """Returns the rows of a batch, those that decode first."""
    rows = batch.rows
    (tables,) = rows.block_tables
    device = tables.device
    is_chunk = rows.num_tokens != 1
    starts = np.append(rows.token_starts, len(batch.input_ids_T)).astype(np.int32)
    return MixedRows(
        input_ids_T=batch.input_ids_T,
        positions_T=batch.positions_T,
        slot_mapping_T=rows.slot_mapping[0],
        row_starts_R1=torch.from_numpy(starts).to(device),
        contexts_R=torch.from_numpy(rows.context_tokens).to(device),
        slots_R=torch.from_numpy(rows.slots).to(device),
        block_tables_SM=tables,
        num_decode_rows=int(is_chunk.argmax()) if is_chunk.any() else len(is_chunk),
        host=HostRows(row_starts_R1=starts, contexts_R=rows.context_tokens, slots_R=rows.slots),
    )


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {name: _write(root / name, family) for name, family in FAMILIES.items()}


def _write(directory: Path, family: dict[str, object]) -> Path:
    """Writes random weights, so large that greedy choices don't hang on rounding."""
    shape = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(shape | family))
    config = _config(directory)
    targets = weight_targets(
        Transformer(config, part=Partition(), dtype=torch.float32), config, Partition()
    )
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: torch.randn(target.source_shape, generator=generator)
        * (0.3 if len(target.source_shape) > 1 else 0.1)
        + ("norm" in name)
        for name, target in targets.items()
    }
    save_file(tensors, directory / "model.safetensors")
    return directory


def _config(checkpoint: Path) -> ModelConfig:
    return parse_model_config(Fields.read(checkpoint / "config.json"))


def _nothing(stage: str, done: int, total: int) -> None:
    pass


def _reference(checkpoint: Path, device: torch.device) -> Reference:
    config = _config(checkpoint)
    with device:
        model = Transformer(config, part=Partition(), dtype=torch.float32)
    model.load(checkpoint, on_progress=_nothing)
    return Reference(model, config, device)


def _own(
    checkpoint: Path,
    device: torch.device,
    *,
    deterministic: bool = False,
    narrow_weights: bool = False,
    keeps_stored: bool = False,
    cache_dir: Path | None = None,
    kv_dtype: torch.dtype = torch.float32,
) -> Own:
    config = _config(checkpoint)
    settings = CudaSettings(
        max_step_tokens=64,
        max_rows=NUM_SLOTS,
        max_logits=NUM_SLOTS,
        context_tokens=64,
        narrow_weights=narrow_weights,
        keeps_stored=keeps_stored,
        kv_dtype=kv_dtype,
        deterministic=deterministic,
        cache_dir=cache_dir,
    )
    with device:
        model = CudaTransformer(config, part=Partition(), dtype=torch.float32, settings=settings)
    model.load(checkpoint, on_progress=_nothing)
    return Own(model, config, device, kv_dtype)


@pytest.mark.parametrize(
    ("family", "deterministic"),
    [
        ("llama", False),
        pytest.param("qwen2", True, marks=pytest.mark.device),
        pytest.param("qwen2", False, marks=pytest.mark.device),
        pytest.param("qwen3", False, marks=pytest.mark.device),
    ],
)
def test_logits_are_those_of_the_torch_model(device, checkpoints, family, deterministic) -> None:
    wanted = _reference(checkpoints[family], device)
    found = _own(checkpoints[family], device, deterministic=deterministic)
    slots, contexts = [2, 0, 1], [0, 0, 0]

    assert found.model.kernels == {"attention": "triton"}
    for counts in STEPS:
        expected = wanted.step(slots, contexts, counts)
        decodes = counts == [1, 1, 1]
        actual = found.decode(slots, contexts) if decodes else found.step(slots, contexts, counts)

        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
        assert torch.equal(actual.argmax(-1), expected.argmax(-1))
        contexts = [context + count for context, count in zip(contexts, counts, strict=True)]


def _narrow(linear: Linear, norm: RmsNorm | None) -> None:
    """Rounds a matrix as the kernels' is: behind the norm's weights, which it gives back."""
    columns = torch.ones(linear.weight.shape[1]) if norm is None else norm.weight.cpu()
    narrow, scale = narrow_matrix(linear.weight.cpu(), columns_K=columns)
    linear.weight.copy_(narrow.float() * scale[:, None] / columns)


@pytest.mark.parametrize(
    ("family", "deterministic", "counts"),
    [
        ("llama", False, [0]),
        pytest.param("qwen2", True, [1, 9], marks=pytest.mark.device),
        pytest.param("qwen3", False, [1, 9], marks=pytest.mark.device),
    ],
)
def test_8_bit_weights_compute_what_they_stand_for(
    device, checkpoints, family, deterministic, counts
) -> None:
    wanted = _reference(checkpoints[family], device)
    for layer in wanted.model.layers:
        _narrow(layer.attention.qkv, layer.attention_norm)
        _narrow(layer.attention.output, None)
        _narrow(layer.feed_forward.gate_up, layer.feed_forward_norm)
        _narrow(layer.feed_forward.down, None)
    found = _own(checkpoints[family], device, narrow_weights=True, deterministic=deterministic)
    slots, ones = [2, 0][: len(counts)], [1] * len(counts)
    if any(counts):
        expected = wanted.step(slots, [0, 0], counts)
        actual = found.step(slots, [0, 0], counts)
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)

    expected = wanted.step(slots, counts, ones)
    actual = found.decode(slots, counts)

    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "deterministic", "counts"),
    [
        ("llama", False, [0]),
        pytest.param("llama", True, [1, 9], marks=pytest.mark.device),
        pytest.param("blocks", False, [1, 9], marks=pytest.mark.device),
    ],
)
def test_8_bit_weights_of_a_checkpoint_are_kept(
    device, checkpoints, tmp_path, family, deterministic, counts
) -> None:
    checkpoint = narrow_checkpoint(checkpoints[family], tmp_path, by_blocks=family == "blocks")
    wanted = _reference(checkpoint, device)
    found = _own(checkpoint, device, keeps_stored=True, deterministic=deterministic)
    slots, ones = [2, 0][: len(counts)], [1] * len(counts)
    if any(counts):
        expected = wanted.step(slots, [0, 0], counts)
        actual = found.step(slots, [0, 0], counts)
        torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)

    expected = wanted.step(slots, counts, ones)
    actual = found.decode(slots, counts)

    assert found.model.is_narrow
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.device
def test_deterministic_logits_are_a_prompts_own(device, checkpoints) -> None:
    own = _own(checkpoints["qwen2"], device, deterministic=True)
    own.text[1] = own.text[2] = own.text[0].clone()
    whole = own.step([0], [0], [20])

    own.step([3, 1], [0, 0], [4, 6])
    cut = own.step([1, 3], [6, 4], [14, 1])
    own.step([2], [0], [19])
    decoded = own.decode([3, 2], [5, 19])

    assert torch.equal(cut[0], whole[0])
    assert torch.equal(decoded[1], whole[0])


@pytest.mark.device
@pytest.mark.parametrize("deterministic", [False, True])
def test_cache_of_8_bit_floats_is_close_and_as_good_when_it_is_reused(
    device, checkpoints, deterministic
) -> None:
    checkpoint = checkpoints["wide_heads"]
    wanted = _own(checkpoint, device, deterministic=deterministic)
    found = _own(checkpoint, device, deterministic=deterministic, kv_dtype=NARROW)
    for harness in (wanted, found):
        harness.text[1] = harness.text[0].clone()

    expected = wanted.step([0], [0], [20])
    whole = found.step([0], [0], [20])
    found.step([1], [0], [13])
    cut = found.step([1], [13], [6])
    cut = found.decode([1], [19])

    error = float((whole - expected).norm() / expected.norm())
    assert 1e-4 < error < 0.1
    assert torch.equal(cut, whole) if deterministic else torch.allclose(cut, whole, atol=1e-3)


@pytest.mark.device
def test_tuned_products_compute_the_same_and_are_kept(device, checkpoints, tmp_path) -> None:
    wanted = _reference(checkpoints["qwen2"], device).step([0, 1], [0, 0], [9, 5])
    own = _own(checkpoints["qwen2"], device, cache_dir=tmp_path)
    own.model.bind(own.kv)

    own.model.tune((1, 3), budget_s=30.0)

    found = own.step([0, 1], [0, 0], [9, 5])
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    assert len(list(tmp_path.iterdir())) == 1
    again = _own(checkpoints["qwen2"], device, cache_dir=tmp_path)
    again.model.bind(again.kv)
    again.model.tune((1, 3), budget_s=0.0)
    assert torch.equal(again.step([0, 1], [0, 0], [9, 5]), found)


def test_models_that_kernels_cannot_compute_are_named(checkpoints) -> None:
    config = _config(checkpoints["llama"])

    assert supports(config, torch.float32) is None
    assert "float16" in str(supports(config, torch.float16))
    assert "of 16 features: at least 32" in str(supports(config, torch.bfloat16, narrow_cache=True))
    odd = replace(config, intermediate_size=100)
    assert supports(odd, torch.bfloat16) is None
    assert "100 columns" in str(supports(odd, torch.bfloat16, narrow_weights=True))
