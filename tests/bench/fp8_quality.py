"""What 8-bit floats change of a real model's predictions, by emulation on the CPU.

Layers' matrices become what the kernels for CUDA make of them: e4m3 with a scale for each row,
behind the norms that are multiplied in. `rows` rounds what is multiplied by them as well, each row
by its own scale, as steps of more than 64 tokens do. `cache` rounds keys, behind their rotation,
and values, each head of each token by its own scale, as a KV cache of 8-bit floats does. All else
is computed in float32, so that nothing but this rounding shows. The text is this repository's
licence, read in windows; compared with is the same checkpoint unrounded.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoTokenizer, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from antiphon_engine.model.narrow import narrow_matrix
from support.default_model import default_checkpoint, expanded_checkpoint
from support.tiny_checkpoints import load_reference

_WINDOW_TOKENS = 384
_NARROW_CACHE = "narrow_cache"
_TEXT = Path(__file__).parents[2] / "LICENSE"


def rounded(values: Tensor) -> Tensor:
    """Returns what rows are as 8-bit floats, each by its own scale."""
    narrow, scale = narrow_matrix(values)
    return narrow.float() * scale[:, None]


def layer_matrices(model: PreTrainedModel) -> Iterator[tuple[nn.Linear, Tensor]]:
    """Returns every matrix of the layers with the weights of the norm in front of it, or ones."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            yield linear, layer.input_layernorm.weight
        for linear in (mlp.gate_proj, mlp.up_proj):
            yield linear, layer.post_attention_layernorm.weight
        for linear in (attention.o_proj, mlp.down_proj):
            yield linear, torch.ones(linear.in_features)


def round_weights(model: PreTrainedModel) -> None:
    """Gives every matrix of the layers the values of its 8-bit floats."""
    for linear, columns in layer_matrices(model):
        linear.weight.copy_(rounded(linear.weight * columns) / columns)


def round_rows(model: PreTrainedModel) -> None:
    """Has every matrix of the layers multiplied by rounded rows."""
    for linear, columns in layer_matrices(model):
        linear.register_forward_pre_hook(_rounder(columns))


def _rounder(columns: Tensor) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    def round_input(linear: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = inputs
        return ((rounded((x / columns).flatten(0, -2)) * columns).view(x.shape),)

    return round_input


def round_cache(model: PreTrainedModel) -> None:
    """Has keys and values rounded before they are attended to."""
    AttentionInterface.register(_NARROW_CACHE, attend_rounded)
    AttentionMaskInterface.register(_NARROW_CACHE, sdpa_mask)
    model.set_attn_implementation(_NARROW_CACHE)


def attend_rounded(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: object,
) -> tuple[Tensor, None]:
    """Returns attention to keys and values [batch, heads, tokens, D] as 8-bit floats."""
    key, value = (rounded(heads.flatten(0, -2)).view(heads.shape) for heads in (key, value))
    found: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **options
    )
    return found


def keep_cache(model: PreTrainedModel) -> None:
    """Takes `round_cache` back."""
    model.set_attn_implementation("sdpa")


def read_text(model: PreTrainedModel, windows: Tensor) -> tuple[Tensor, float]:
    """Returns logits behind every token but each window's last, and the text's perplexity."""
    logits = torch.cat([model(window[None]).logits[0, :-1] for window in windows])
    next_ids = windows[:, 1:].flatten()
    losses = nn.functional.cross_entropy(logits, next_ids)
    return logits, math.exp(float(losses))


@torch.inference_mode()
def main() -> None:
    """Prints a line for each rounding, and a JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=4, help="of 384 tokens (default 4)")
    num_windows = parser.parse_args().windows
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = expanded_checkpoint(default_checkpoint(), Path(folder))
        ids = AutoTokenizer.from_pretrained(checkpoint)(_TEXT.read_text()).input_ids
        windows = torch.tensor(ids[: num_windows * _WINDOW_TOKENS]).view(num_windows, -1)
        model = load_reference(checkpoint)
        exact, perplexity = read_text(model, windows)
        print(f"unrounded: perplexity {perplexity:.4f}, {len(exact)} positions", flush=True)
        for name, *changes in (
            ("cache", round_cache),
            ("weights", keep_cache, round_weights),
            ("weights and cache", round_cache),
            ("weights and rows", keep_cache, round_rows),
            ("weights, rows and cache", round_cache),
        ):
            for change in changes:
                change(model)
            logits, other = read_text(model, windows)
            found[name] = {
                "logit_error": round(float((logits - exact).norm() / exact.norm()), 4),
                "top1": round(float((logits.argmax(-1) == exact.argmax(-1)).float().mean()), 4),
                "perplexity_ratio": round(other / perplexity, 4),
            }
            print(f"{name}: {found[name]}", flush=True)
    print(json.dumps(found | {"positions": len(exact)}))


if __name__ == "__main__":
    main()
