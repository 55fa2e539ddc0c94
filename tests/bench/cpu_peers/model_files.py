"""The default model in the forms that peers read, all of them made of its one GGUF file."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file

from antiphon_engine.checkpoint.blocks import expand
from antiphon_engine.checkpoint.demo import demo_file, join
from antiphon_engine.checkpoint.shards import find_shards

_FILE_TYPES = {
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
}


def write_original(target: Path) -> None:
    """Writes the GGUF file that the default model is published as."""
    join(demo_file(), target, progress=lambda stage, done, total: None)


def write_gguf(original: Path, target: Path, kind: str) -> None:
    """Writes the model with every matrix in one type, q8_0, bf16 or f16.

    As in Antiphon's checkpoint, one matrix is embedding and output matrix. A file that is there is
    whole.
    """
    partial = target.with_name(f".partial-{target.name}")
    reader = gguf.GGUFReader(original)
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in {
            "general.architecture",
            "general.file_type",
        }:
            is_list = field.types[0] is gguf.GGUFValueType.ARRAY
            item = field.types[-1] if is_list else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)
    writer.add_file_type(_FILE_TYPES[kind])
    matrix_type = gguf.GGMLQuantizationType[kind.upper()]
    for name, values in _tied_tensors(reader):
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, matrix_type), raw_dtype=matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _tied_tensors(reader: gguf.GGUFReader) -> Iterator[tuple[str, NDArray[np.float32]]]:
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    output = tensors.pop("output.weight", None)
    if output is not None:
        tensors["token_embd.weight"] = output
    for name, tensor in tensors.items():
        yield name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32)


def write_bfloat16(checkpoint: Path, target: Path) -> None:
    """Writes a checkpoint's directory anew with every tensor in bfloat16, as other engines read."""
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shards = find_shards(checkpoint)
    tensors = {}
    for path, names in shards.by_file().items():
        with safe_open(path, framework="pt") as file:
            for name in names:
                stored, kind = file.get_tensor(name), shards.kinds.get(name)
                values = stored if kind is None else torch.from_numpy(expand(kind, stored.numpy()))
                tensors[name] = values.to(torch.bfloat16).contiguous()
    save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    for file_path in checkpoint.iterdir():
        if file_path.suffix in {".json", ".jinja"} and "index" not in file_path.name:
            shutil.copy(file_path, partial)
    config = json.loads((partial / "config.json").read_text())
    config["dtype"] = "bfloat16"
    (partial / "config.json").write_text(json.dumps(config, indent=1))
    partial.rename(target)
