"""Which tensor of a checkpoint goes where in `Transformer`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.layers import Attention, DecoderLayer, FeedForward, RmsNorm
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.weights import ParameterSink, WeightTarget

if TYPE_CHECKING:
    from antiphon_engine.model.transformer import Transformer

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def weight_targets(
    model: "Transformer", config: ModelConfig, part: Partition
) -> dict[str, WeightTarget]:
    """Returns a target for each tensor that the checkpoint must have. They cover all parameters."""
    named = [_whole(EMBEDDING, model.embedding), _norm("model.norm", model.norm)]
    if not config.tied_embeddings:
        assert model.head.weight is not None
        named.append(_whole(HEAD, model.head.weight))
    for index, layer in enumerate(model.layers):
        named += _layer(f"model.layers.{index}", layer, config, part)
    targets = dict(named)
    assert len(targets) == len(named)
    return targets


_Named = tuple[str, WeightTarget]


def _layer(prefix: str, layer: DecoderLayer, config: ModelConfig, part: Partition) -> list[_Named]:
    return [
        _norm(f"{prefix}.input_layernorm", layer.attention_norm),
        _norm(f"{prefix}.post_attention_layernorm", layer.feed_forward_norm),
        *_attention(f"{prefix}.self_attn", layer.attention, config, part),
        *_feed_forward(f"{prefix}.mlp", layer.feed_forward, config, part),
    ]


def _attention(
    prefix: str, attention: Attention, config: ModelConfig, part: Partition
) -> list[_Named]:
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    named = [
        *_split_rows(prefix, attention.qkv, sizes, part),
        *_split_columns(
            f"{prefix}.o_proj", attention.output, q_size, bias=config.output_bias, part=part
        ),
    ]
    if attention.q_norm is not None and attention.k_norm is not None:
        named.append(_norm(f"{prefix}.q_norm", attention.q_norm))
        named.append(_norm(f"{prefix}.k_norm", attention.k_norm))
    return named


def _feed_forward(
    prefix: str, feed_forward: FeedForward, config: ModelConfig, part: Partition
) -> list[_Named]:
    size = config.intermediate_size
    sizes = {"gate_proj": size, "up_proj": size}
    return [
        *_split_rows(prefix, feed_forward.gate_up, sizes, part),
        *_split_columns(
            f"{prefix}.down_proj", feed_forward.down, size, bias=config.mlp_bias, part=part
        ),
    ]


def _split_rows(
    prefix: str, linear: Linear, sizes: dict[str, int], part: Partition
) -> Iterator[_Named]:
    """Stacks several matrices into one, of each this rank's rows."""
    first = 0
    for name, size in sizes.items():
        span = part.span(size)
        last = first + span.stop - span.start
        for kind, parameter in (("weight", linear.weight), ("bias", linear.bias)):
            if parameter is not None:
                rest = tuple(parameter.shape[1:])
                yield (
                    f"{prefix}.{name}.{kind}",
                    WeightTarget(
                        sink=ParameterSink(parameter.data[first:last]),
                        source_shape=(size, *rest),
                        source_part=(span, *(slice(None) for _ in rest)),
                    ),
                )
        first = last


def _split_columns(
    prefix: str, linear: Linear, in_features: int, *, bias: bool, part: Partition
) -> Iterator[_Named]:
    """This rank's input features. The bias is rank 0's, so that the ranks' sum has it once."""
    assert linear.weight is not None
    out_features = linear.weight.shape[0]
    yield (
        f"{prefix}.weight",
        WeightTarget(
            sink=ParameterSink(linear.weight.data),
            source_shape=(out_features, in_features),
            source_part=(slice(None), part.span(in_features)),
        ),
    )
    if linear.bias is not None:
        yield _whole(f"{prefix}.bias", linear.bias)
    elif bias:
        nothing = WeightTarget(
            sink=ParameterSink(torch.empty(0)),
            source_shape=(out_features,),
            source_part=(slice(0, 0),),
        )
        yield f"{prefix}.bias", nothing


def _norm(name: str, norm: RmsNorm) -> _Named:
    return _whole(f"{name}.weight", norm.weight)


def _whole(name: str, parameter: Tensor) -> _Named:
    shape = tuple(parameter.shape)
    everything = tuple(slice(None) for _ in shape)
    sink = ParameterSink(parameter.data)
    return name, WeightTarget(sink=sink, source_shape=shape, source_part=everything)
