"""Checkpoints whose matrices are 8-bit floats: how their configurations say so. Imports no torch.

Two conventions are read: `fp8`, as DeepSeek and Qwen publish, and `compressed-tensors` with floats
of 8 bits. Activations are scaled by the engine, row by row as they come, whatever was measured of
them; that is at least as exact as what the checkpoint asks for.
"""

from dataclasses import dataclass
from typing import Final

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.fields import Fields

STORED: Final = "F8_E4M3"
"""What safetensors files call the type."""
SCALE_BLOCK: Final = 128
"""Rows and columns of a block that has a scale."""
_WEIGHT: Final = ".weight"
_INPUT_SCALE: Final = ".input_scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Format:
    """How 8-bit floats of a checkpoint are scaled: weights are what is stored times the scale."""

    scale_suffix: str
    """Of the tensor with a matrix's scales, in place of `.weight`."""
    has_blocks: bool
    """Whether blocks of `SCALE_BLOCK` rows and columns have scales; else a matrix, or its rows."""

    def scale_of(self, weight: str) -> str:
        """Returns the name of the scales of a matrix."""
        return weight.removesuffix(_WEIGHT) + self.scale_suffix

    def weight_of(self, name: str) -> str | None:
        """Returns the matrix that a tensor says something of; None: the tensor is one itself."""
        for suffix in (self.scale_suffix, _INPUT_SCALE):
            if name.endswith(suffix):
                return name.removesuffix(suffix) + _WEIGHT
        return None


def parse_float8(config: Fields) -> Float8Format | None:
    """Reads the format of a model's configuration; None: its weights aren't quantized.

    Raises:
        StartupError: they are, in a way that isn't supported.
    """
    quantization = config.nested("quantization_config")
    if quantization is None:
        return None
    method = quantization.text("quant_method", "unknown method")
    match method:
        case "fp8":
            return _fp8(quantization)
        case "compressed-tensors":
            return _compressed_tensors(quantization)
    raise _unsupported(method, "supported are fp8, and compressed-tensors with 8-bit floats")


def _fp8(config: Fields) -> Float8Format:
    number_format = config.text("fmt", "e4m3")
    if number_format not in ("e4m3", "float8_e4m3fn"):
        raise _unsupported("fp8", f"its numbers are {number_format}, only e4m3 is read")
    if "weight_block_size" not in config:
        return Float8Format(scale_suffix=".weight_scale", has_blocks=False)
    _check_blocks("fp8", config, "weight_block_size")
    return Float8Format(scale_suffix=".weight_scale_inv", has_blocks=True)


def _compressed_tensors(config: Fields) -> Float8Format:
    method = "compressed-tensors"
    if "kv_cache_scheme" in config:
        raise _unsupported(method, "it has a kv_cache_scheme")
    groups = config.nested("config_groups") or Fields({}, "config_groups")
    names = groups.names()
    if len(names) != 1:
        raise _unsupported(method, f"it has {len(names)} config_groups, only one is read")
    group = groups.nested(names[0]) or Fields({}, names[0])
    if group.texts("targets") != ("Linear",):
        raise _unsupported(method, f"its targets are {group.texts('targets')}, not Linear alone")
    weights = group.nested("weights") or Fields({}, "weights")
    kind, num_bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    strategy = weights.text("strategy", "tensor")
    if (kind, num_bits) != ("float", 8):
        raise _unsupported(method, f"its weights are {kind} of {num_bits} bits, not float of 8")
    if strategy not in ("tensor", "channel", "block"):
        raise _unsupported(method, f"the strategy of its weights is {strategy}")
    if not weights.boolean("symmetric", True) or weights.boolean("dynamic", False):
        raise _unsupported(method, "its weights aren't symmetric and fixed")
    if strategy == "block":
        _check_blocks(method, weights, "block_structure")
    return Float8Format(scale_suffix=".weight_scale", has_blocks=strategy == "block")


def _check_blocks(method: str, config: Fields, name: str) -> None:
    sizes = config.sizes(name)
    if sizes != (SCALE_BLOCK, SCALE_BLOCK):
        raise _unsupported(method, f"{name} is {list(sizes)}, only [128, 128] is read")


def _unsupported(method: str, reason: str) -> StartupError:
    return StartupError(f"the checkpoint is quantized ({method}) in an unsupported way: {reason}")
