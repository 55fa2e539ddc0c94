"""A model's weights as the kernels take them.

Norms in front of products are multiplied into those products' columns, once: then products need
only the rows' root mean squares, and those they compute as they go. Quantization comes behind that.
What a checkpoint has quantized stays so: then rows are multiplied by the norm's weights instead.

Shape suffixes: V vocabulary, H hidden size, D head dimension, N output features.
"""

from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

from torch import Tensor

from antiphon_engine.cuda.kernels.narrow_products import interleave
from antiphon_engine.cuda.kernels.products import Product
from antiphon_engine.cuda.stored_weights import StoredMatrix
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.layers import Attention, DecoderLayer, RmsNorm
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.narrow import narrow_matrix
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

    def products(self) -> tuple[Product, ...]:
        """Returns all of them."""
        return (self.qkv, self.output, self.gate_up, self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaWeights:
    """All of a model's weights."""

    embedding_VH: Tensor
    layers: tuple[LayerWeights, ...]
    norm_H: Tensor
    """The last norm's; it stands apart, since the output matrix may be the embedding."""
    head: Product


def take_weights(
    source: Transformer,
    config: ModelConfig,
    *,
    is_narrow: bool = False,
    stored: dict[Linear, StoredMatrix] | None = None,
) -> CudaWeights:
    """Takes over the weights of a model that has been loaded. It computes wrongly from then on.

    Where `is_narrow`, layers' matrices become 8-bit floats, each row with a scale, and are let go
    of one by one as they were. Embedding and output matrix stay as they are: they are read once a
    step, and what they round goes straight into the choice of tokens.

    Matrices that are `stored` are taken out of there, one by one too.
    """
    taking = _Taking(is_narrow=is_narrow, stored={} if stored is None else stored)
    return CudaWeights(
        embedding_VH=source.embedding.data,
        layers=tuple(_layer(layer, config, taking.take) for layer in source.layers),
        norm_H=source.norm.weight.data,
        head=Product(weight_NK=source.head.take()),
    )


class _Around(TypedDict, total=False):
    """What is computed with a product."""

    norm_epsilon: float
    is_gate_up: bool
    is_added: bool


class _Take(Protocol):
    """Makes a product of a layer's matrix and the norm before it."""

    def __call__(
        self, linear: Linear, norm: RmsNorm | None, **around: Unpack[_Around]
    ) -> Product: ...


def _layer(layer: DecoderLayer, config: ModelConfig, take: _Take) -> LayerWeights:
    attention, feed_forward = layer.attention, layer.feed_forward
    epsilon = config.norm_epsilon
    q_norm_D, k_norm_D = _head_norms(attention)
    return LayerWeights(
        qkv=take(attention.qkv, layer.attention_norm, norm_epsilon=epsilon),
        output=take(attention.output, None, is_added=True),
        gate_up=take(
            feed_forward.gate_up, layer.feed_forward_norm, norm_epsilon=epsilon, is_gate_up=True
        ),
        down=take(feed_forward.down, None, is_added=True),
        q_norm_D=q_norm_D,
        k_norm_D=k_norm_D,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taking:
    """How matrices are taken."""

    is_narrow: bool
    stored: dict[Linear, StoredMatrix]

    def take(self, linear: Linear, norm: RmsNorm | None, **around: Unpack[_Around]) -> Product:
        """See _Take."""
        matrix = self.stored.pop(linear, None)
        if matrix is not None:
            return Product(
                weight_NK=interleave(matrix.values_NK),
                scale=matrix.scale,
                bias_N=_bias(linear),
                columns_K=None if norm is None else norm.weight.data,
                **around,
            )
        return (_take_narrow if self.is_narrow else _take)(linear, norm, **around)


def _take(linear: Linear, norm: RmsNorm | None, **around: Unpack[_Around]) -> Product:
    weight_NK = linear.take()
    if norm is not None:
        weight_NK.mul_(norm.weight.data)
    return Product(weight_NK=weight_NK, bias_N=_bias(linear), **around)


def _take_narrow(linear: Linear, norm: RmsNorm | None, **around: Unpack[_Around]) -> Product:
    narrow_NK, scale_N = narrow_matrix(
        linear.take(), columns_K=None if norm is None else norm.weight.data
    )
    return Product(weight_NK=interleave(narrow_NK), scale=scale_N, bias_N=_bias(linear), **around)


def _head_norms(attention: Attention) -> tuple[Tensor | None, Tensor | None]:
    if attention.q_norm is None or attention.k_norm is None:
        return None, None
    return attention.q_norm.weight.data, attention.k_norm.weight.data


def _bias(linear: Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.data
