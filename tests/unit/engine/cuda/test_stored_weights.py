"""What becomes of a checkpoint's 8-bit floats where the kernels for CUDA take them."""

import pytest
import torch
from safetensors.torch import load_file

from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.cuda.stored_weights import SourceLoader
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.transformer import Transformer
from support.narrow_checkpoints import narrow_checkpoint
from support.tiny_checkpoints import TinyModel, make_checkpoint

V_PROJ = "model.layers.1.self_attn.v_proj.weight"
SHAPES = {
    False: {},
    True: {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "num_attention_heads": 4,
    },
}


@pytest.fixture(scope="module", params=[False, True], ids=("rows", "blocks"))
def checkpoint(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("narrow")
    made = TinyModel(family="qwen3", tied=True, extra=SHAPES[request.param])
    source = make_checkpoint(root / "source", made)
    directory = root / "stored"
    directory.mkdir()
    return narrow_checkpoint(source, directory, by_blocks=request.param, wide=(V_PROJ,))


def load(checkpoint, *, keeps_stored):
    config = parse_model_config(Fields.read(checkpoint / "config.json"))
    with torch.device("meta"):
        source = Transformer(config, part=Partition(), dtype=torch.float32)
    loader = SourceLoader(source=source, config=config, device=torch.device("cpu"))
    stored = loader.load(checkpoint, keeps_stored=keeps_stored, on_progress=lambda *progress: None)
    return source, stored


def test_whole_matrices_are_kept_bit_by_bit_and_take_no_other_memory(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    source, stored = load(checkpoint, keeps_stored=True)
    (first, second) = source.layers

    kept = stored[first.attention.qkv]
    names = [f"model.layers.0.self_attn.{kind}_proj.weight" for kind in "qkv"]
    held = torch.cat([tensors[name].view(torch.uint8) for name in names])
    assert torch.equal(kept.values_NK.view(torch.uint8), held)
    suffix = "_scale_inv" if kept.scale.ndim == 2 else "_scale"
    scales = torch.cat([tensors[name + suffix] for name in names])
    assert torch.equal(kept.scale, scales.view(kept.scale.shape))
    assert first.attention.qkv.weight.is_meta
    # One of its tensors isn't stored so.
    assert second.attention.qkv not in stored
    assert torch.equal(second.attention.qkv.weight[-len(tensors[V_PROJ]) :], tensors[V_PROJ])
    assert len(stored) == 7


def test_everything_else_gets_memory_and_its_values(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    source, stored = load(checkpoint, keeps_stored=True)

    assert not any(
        parameter.is_meta
        for module in source.modules()
        if module not in stored
        for parameter in module.parameters(recurse=False)
    )
    assert torch.equal(source.embedding, tensors["model.embed_tokens.weight"])
    assert source.head.weight is source.embedding


def test_nothing_is_kept_unless_it_is_asked_for(checkpoint):
    source, stored = load(checkpoint, keeps_stored=False)

    assert stored == {}
    assert source.layers[0].attention.qkv.weight.isfinite().all()
