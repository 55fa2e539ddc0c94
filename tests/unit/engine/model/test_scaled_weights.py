import json

import pytest
import torch
from safetensors.torch import save_file

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.shards import find_shards
from antiphon_engine.model.weights import ParameterSink, WeightTarget, load_weights

E4M3 = torch.float8_e4m3fn
NAME = "model.layers.0.self_attn.q_proj.weight"
SHAPE = (140, 200)
"""Ends within blocks of scales, and is small enough for torch to fill it on one thread: test
processes are forked from one that has imported this."""
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}


def compressed(strategy):
    weights = {"type": "float", "num_bits": 8, "strategy": strategy}
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


def store(directory, quantization, *, suffix, scale, **tensors):
    """Writes a checkpoint of one matrix and returns the values that are stored."""
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(SHAPE, generator=generator).mul(40).to(E4M3)
    scale_name = NAME.removesuffix(".weight") + suffix
    stored = {NAME: values, scale_name: scale} | tensors
    save_file(
        {name: tensor for name, tensor in stored.items() if tensor is not None},
        directory / "model.safetensors",
    )
    (directory / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    return values


class KeptAsTheyAre:
    """A sink that takes 8-bit floats."""

    def store(self, values):
        raise AssertionError("values have scales")

    def store_scaled(self, values, scale):
        self.values, self.scale = values.clone(), scale


def load(directory, sink=None):
    found = torch.empty(SHAPE)
    everything = (slice(None), slice(None))
    target = WeightTarget(
        sink=sink or ParameterSink(found), source_shape=SHAPE, source_part=everything
    )
    load_weights(
        find_shards(directory), {NAME: target}, tied=None, on_progress=lambda *progress: None
    )
    return found


def scales(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(6)) + 0.01


@pytest.mark.parametrize(
    ("quantization", "suffix", "shape"),
    [
        (BLOCKS, ".weight_scale_inv", (2, 2)),
        (compressed("block"), ".weight_scale", (2, 2)),
        (compressed("channel"), ".weight_scale", (140, 1)),
        (compressed("tensor"), ".weight_scale", (1,)),
        (STATIC, ".weight_scale", ()),
    ],
    ids=("fp8-blocks", "blocks", "channels", "tensor", "fp8-tensor"),
)
def test_matrix_is_what_its_scales_make_of_it(tmp_path, quantization, suffix, shape):
    scale = scales(*shape)
    values = store(tmp_path, quantization, suffix=suffix, scale=scale)

    found = load(tmp_path)

    if shape == (2, 2):
        scale = scale.repeat_interleave(128, 0)[:140].repeat_interleave(128, 1)[:, :200]
    assert torch.equal(found, values.float() * scale)


def test_scales_of_activations_belong_to_their_matrix(tmp_path):
    name = NAME.replace("weight", "input_scale")
    values = store(
        tmp_path,
        STATIC,
        suffix=".weight_scale",
        scale=torch.tensor(0.5),
        **{name: torch.tensor(3.0)},
    )

    assert torch.equal(load(tmp_path), values.float() * 0.5)


@pytest.mark.parametrize(
    ("quantization", "suffix", "scale", "kept"),
    [
        (compressed("tensor"), ".weight_scale", torch.tensor(0.25), torch.full((140,), 0.25)),
        (BLOCKS, ".weight_scale_inv", scales(2, 2).bfloat16(), scales(2, 2).bfloat16().float()),
    ],
    ids=("rows", "blocks"),
)
def test_sink_may_take_values_and_scales_as_they_are(tmp_path, quantization, suffix, scale, kept):
    values = store(tmp_path, quantization, suffix=suffix, scale=scale)
    sink = KeptAsTheyAre()

    load(tmp_path, sink)

    assert torch.equal(sink.values.view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(sink.scale, kept)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": None}, "stored as F8_E4M3, without .*q_proj.weight_scale_inv"),
        ({"scale": scales(2, 3)}, r"has shape \[2, 3\].*\[2, 2\]"),
        ({"scale": torch.tensor([[1.0, 0.0], [1.0, 1.0]])}, "no numbers above zero"),
        ({NAME: torch.ones(SHAPE)}, "has scales, but is stored as F32"),
        ({NAME: torch.full(SHAPE, float("nan")).to(E4M3)}, "values that are no numbers"),
        ({"other.weight_scale_inv": scales(1)}, "scales of no matrix: other.weight_scale_inv"),
        ({"quantization": None}, "tensors unknown to the model"),
    ],
)
def test_scales_that_do_not_fit_are_refused_by_name(tmp_path, changes, words):
    arguments = {"quantization": BLOCKS, "scale": scales(2, 2)} | changes
    quantization = arguments.pop("quantization")
    store(tmp_path, quantization, suffix=".weight_scale_inv", **arguments)

    with pytest.raises(StartupError, match=words):
        load(tmp_path)
