"""A model's weights as the kernels take them.

Norms in front of products are multiplied into those products' columns, once: then products need
only the rows' root mean squares, and those they compute as they go.

Shape suffixes: V vocabulary, H hidden size, D head dimension, N output features.
"""

from dataclasses import dataclass

from torch import Tensor

from antiphon_engine.cuda.kernels.products import Product
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.layers import Attention, DecoderLayer, RmsNorm
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The products of a layer, and the norms of its heads."""

    qkv: Product
    output: Product
    gate_up: Product
    down: Product
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaWeights:
    """All of a model's weights."""

    embedding_VH: Tensor
    layers: tuple[LayerWeights, ...]
    norm_H: Tensor
    """The last norm's; it stands apart, since the output matrix may be the embedding."""
    head: Product


def take_weights(source: Transformer, config: ModelConfig) -> CudaWeights:
    """Takes over the weights of a model that has been loaded. It computes wrongly from then on."""
    return CudaWeights(
        embedding_VH=source.embedding.data,
        layers=tuple(_layer(layer, config) for layer in source.layers),
        norm_H=source.norm.weight.data,
        head=Product(weight_NK=_matrix(source.head)),
    )


def _layer(layer: DecoderLayer, config: ModelConfig) -> LayerWeights:
    attention, feed_forward = layer.attention, layer.feed_forward
    epsilon = config.norm_epsilon
    q_norm_D, k_norm_D = _head_norms(attention)
    return LayerWeights(
        qkv=Product(
            weight_NK=_with_norm(attention.qkv, layer.attention_norm),
            bias_N=_bias(attention.qkv),
            norm_epsilon=epsilon,
        ),
        output=Product(
            weight_NK=_matrix(attention.output), bias_N=_bias(attention.output), is_added=True
        ),
        gate_up=Product(
            weight_NK=_with_norm(feed_forward.gate_up, layer.feed_forward_norm),
            bias_N=_bias(feed_forward.gate_up),
            norm_epsilon=epsilon,
            is_gate_up=True,
        ),
        down=Product(
            weight_NK=_matrix(feed_forward.down), bias_N=_bias(feed_forward.down), is_added=True
        ),
        q_norm_D=q_norm_D,
        k_norm_D=k_norm_D,
    )


def _head_norms(attention: Attention) -> tuple[Tensor | None, Tensor | None]:
    if attention.q_norm is None or attention.k_norm is None:
        return None, None
    return attention.q_norm.weight.data, attention.k_norm.weight.data


def _matrix(linear: Linear) -> Tensor:
    assert linear.weight is not None
    return linear.weight.data


def _bias(linear: Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.data


def _with_norm(linear: Linear, norm: RmsNorm) -> Tensor:
    """Returns the matrix, its columns multiplied in place by the weights of the norm before it."""
    return _matrix(linear).mul_(norm.weight.data)
