"""Turns a GGUF file into a checkpoint directory as transformers writes them.

Matrices in blocks that the engine can compute with stay as they are, which transformers can't read;
others are expanded. Runs in a process of its own: it needs torch and transformers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.blocks import KEPT_TYPES, write_kinds
from antiphon_engine.checkpoint.gguf_config import ARCHITECTURES, config_of, tokenizer_class
from antiphon_engine.checkpoint.gguf_file import GgufFile, StoredTensor, read_gguf
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import INDEX_NAME, name_some

_Scalar = TypeVar("_Scalar", bound=np.generic)

_SHARD_BYTES: Final = 2 << 30
"""Of a file that is written; about as much is held in memory."""

_EMBEDDING: Final = "token_embd.weight"
_OUTPUT: Final = "output.weight"
_WHOLE: Final = MappingProxyType(
    {
        _EMBEDDING: "model.embed_tokens.weight",
        _OUTPUT: "lm_head.weight",
        "output_norm.weight": "model.norm.weight",
    }
)
_IN_LAYER: Final = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of the file and its name in the checkpoint."""

    name: str
    tensor: StoredTensor
    interleaved_heads: int
    """Heads whose rotated pairs lie side by side instead of half a head apart; 0: none."""

    @property
    def is_kept(self) -> bool:
        """Whether its blocks stay as they are."""
        return self.tensor.kind.name in KEPT_TYPES

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Returns the bytes that are written of it."""
        return self.tensor.data.nbytes if self.is_kept else self.tensor.num_values * dtype.itemsize


def convert(source: Path, target: Path, *, tie: bool, progress: OnProgress) -> None:
    """Writes weights, configuration and tokenizer into the empty directory `target`.

    Args:
        source: The file.
        target: The directory.
        tie: Whether to use the output matrix, where there is one, for the embedding as well.
        progress: Is told the stages.

    Raises:
        StartupError: the file is broken, or its architecture or a tensor isn't supported.
    """
    file = _read(source)
    architecture = str(file.facts.get("general.architecture", ""))
    if architecture not in ARCHITECTURES:
        raise StartupError(
            f"GGUF architecture {architecture!r} is not supported; supported: "
            + ", ".join(sorted(ARCHITECTURES))
        )
    progress("read configuration and tokenizer", 0, 0)
    config = config_of(file, architecture)
    tokenizer = tokenizer_class(architecture).from_pretrained(source.parent, gguf_file=source.name)

    entries = _entries(file, architecture, config, tie=tie)
    dtype = _dtype(entries)
    _write_weights(entries, target, dtype, progress=progress)
    _write_config(config, target, ARCHITECTURES[architecture], entries, dtype)
    _write_tokenizer(tokenizer, target, config)
    _write_generation_config(file, tokenizer, target)


def _read(source: Path) -> GgufFile:
    try:
        return read_gguf(source)
    except (ValueError, OSError) as error:
        raise StartupError(f"{source} is no whole GGUF file: {error}") from error


def _entries(
    file: GgufFile, architecture: str, config: PretrainedConfig, *, tie: bool
) -> list[_Entry]:
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if tie and _OUTPUT in tensors:
        tensors[_EMBEDDING] = tensors.pop(_OUTPUT)
    entries, unknown = [], []
    for name, tensor in tensors.items():
        target = _target_name(name)
        if target is None:
            unknown.append(name)
            continue
        heads = 0
        if architecture == "llama" and ".attn_q." in name:
            heads = config.num_attention_heads
        elif architecture == "llama" and ".attn_k." in name:
            heads = config.num_key_value_heads
        if heads and tensor.shape[0] % (2 * heads):
            raise StartupError(
                f"{name} has {tensor.shape[0]} rows, which {heads} heads can't share evenly"
            )
        entries.append(_Entry(target, tensor, heads))
    if unknown:
        raise StartupError(f"the file has tensors that aren't supported: {name_some(unknown)}")
    return entries


def _target_name(name: str) -> str | None:
    if name in _WHOLE:
        return _WHOLE[name]
    match name.split("."):
        case ["blk", layer, part, kind] if part in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}"
    return None


def _dtype(entries: Sequence[_Entry]) -> torch.dtype:
    """Returns what holds the matrices without loss where they are plain; else bfloat16."""
    types = {entry.tensor.kind for entry in entries if len(entry.tensor.shape) > 1}
    if GGMLQuantizationType.F32 in types:
        return torch.float32
    if GGMLQuantizationType.F16 in types:
        return torch.float16
    return torch.bfloat16


def _write_weights(
    entries: Sequence[_Entry], target: Path, dtype: torch.dtype, *, progress: OnProgress
) -> None:
    shards = list(_divide(entries, dtype))
    weight_map: dict[str, str] = {}
    done = 0
    for index, shard in enumerate(shards, start=1):
        file = f"model-{index:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            file = "model.safetensors"
        tensors = {}
        for entry in shard:
            tensors[entry.name] = _written(entry, dtype)
            done += 1
            progress("convert", done, len(entries))
        progress(f"write {file}", done, len(entries))
        kinds = {entry.name: entry.tensor.kind.name for entry in shard if entry.is_kept}
        save_file(tensors, target / file, {"format": "pt", **write_kinds(kinds)})
        weight_map |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        size_bytes = sum(entry.num_bytes(dtype) for entry in entries)
        _write_json(
            target / INDEX_NAME, {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
        )


def _divide(entries: Sequence[_Entry], dtype: torch.dtype) -> Iterator[list[_Entry]]:
    shard: list[_Entry] = []
    size_bytes = 0
    for entry in entries:
        entry_bytes = entry.num_bytes(dtype)
        if shard and size_bytes + entry_bytes > _SHARD_BYTES:
            yield shard
            shard, size_bytes = [], 0
        shard.append(entry)
        size_bytes += entry_bytes
    yield shard


def _expand(entry: _Entry) -> Tensor:
    try:
        weights: NDArray[np.float32] = dequantize(entry.tensor.data, entry.tensor.kind)
    except NotImplementedError as error:
        kind = entry.tensor.kind.name
        raise StartupError(f"{entry.tensor.name} is quantized as {kind}: not supported") from error
    return torch.from_numpy(_in_halves(entry, weights.astype(np.float32)))


def _written(entry: _Entry, dtype: torch.dtype) -> Tensor:
    """Returns a tensor as it is written. Vectors are small: they lose nothing."""
    if entry.is_kept:
        return _keep(entry)
    values = _expand(entry)
    return values if values.ndim == 1 else values.to(dtype)


def _keep(entry: _Entry) -> Tensor:
    blocks = entry.tensor.data.view(np.uint8)
    return torch.from_numpy(_in_halves(entry, np.array(blocks)))


def _in_halves(entry: _Entry, rows: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Returns the rows in the order that rotated pairs have here. Blocks run along rows."""
    if entry.interleaved_heads:
        num_rows, *rest = rows.shape
        pairs = rows.reshape(entry.interleaved_heads, -1, 2, *rest)
        rows = pairs.swapaxes(1, 2).reshape(num_rows, *rest)
    return np.ascontiguousarray(rows)


def _write_config(
    config: PretrainedConfig,
    target: Path,
    architecture: str,
    entries: Sequence[_Entry],
    dtype: torch.dtype,
) -> None:
    config.architectures = [architecture]
    config.dtype = dtype
    config.tie_word_embeddings = all(entry.name != _WHOLE[_OUTPUT] for entry in entries)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(target)


def _write_tokenizer(
    tokenizer: PreTrainedTokenizerBase, target: Path, config: PretrainedConfig
) -> None:
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)


def _write_generation_config(
    file: GgufFile, tokenizer: PreTrainedTokenizerBase, target: Path
) -> None:
    """Writes every end id: chats end with one, plain texts with another."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    facts = [file.facts.get(f"tokenizer.ggml.{key}") for key in keys]
    end_ids = [int(fact) for fact in facts if fact is not None]
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    if "<|endoftext|>" in vocabulary:
        end_ids.append(vocabulary["<|endoftext|>"])
    _write_json(target / "generation_config.json", {"eos_token_id": list(dict.fromkeys(end_ids))})


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
