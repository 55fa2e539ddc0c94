"""What a model multiplies with, and the form in which each matrix is kept.

Which tensors of the checkpoint make a matrix follows from the model; how it is kept, from the
settings and from what the checkpoint holds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from antiphon_engine import _kernels
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.transformer_weights import EMBEDDING, HEAD
from antiphon_engine.quantization import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor of the checkpoint within a matrix."""

    tensor: str
    num_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix as it is kept: tensors of one form, one below the other."""

    parts: tuple[Part, ...]
    num_in: int
    weight_format: str
    """A word of `_kernels.PackedMatrix`."""
    order: str = "plain"

    @property
    def num_out(self) -> int:
        """Rows of all parts."""
        return sum(part.num_out for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return _kernels.packed_bytes(
            self.num_out, self.num_in, weight_format=self.weight_format, order=self.order
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProducts:
    """The matrices of a layer. Queries, keys and values are one where they have one form."""

    qkv: tuple[Matrix, ...]
    output: Matrix
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """All matrices of a model."""

    embedding: Matrix
    head: Matrix
    """The embedding itself where they are tied."""
    layers: tuple[LayerProducts, ...]
    quantization: str
    """What the model says of itself: empty where nothing is quantized."""

    def matrices(self) -> Iterator[Matrix]:
        """Returns each matrix once."""
        yield self.embedding
        if self.head is not self.embedding:
            yield self.head
        for layer in self.layers:
            yield from (*layer.qkv, layer.output, layer.gate_up, layer.down)


def plan_products(
    config: ModelConfig, *, dtype: str, quantization: Quantization, kinds: Mapping[str, str]
) -> Products:
    """Returns what the model multiplies with.

    Args:
        config: The model.
        dtype: The engine's type, which matrices have that aren't quantized.
        quantization: What was asked for.
        kinds: GGML types of the tensors that the checkpoint has in blocks.
    """
    forms = _Forms(dtype, quantization, kinds)
    embedding = forms.matrix({EMBEDDING: config.vocabulary_size}, config.hidden_size, outer=True)
    head = embedding
    if not config.tied_embeddings:
        head = forms.matrix({HEAD: config.vocabulary_size}, config.hidden_size, outer=True)
    layers = tuple(_layer(config, forms, index) for index in range(config.num_layers))
    products = Products(embedding=embedding, head=head, layers=layers, quantization="")
    return Products(
        embedding=embedding, head=head, layers=layers, quantization=forms.describe(products)
    )


def _layer(config: ModelConfig, forms: "_Forms", index: int) -> LayerProducts:
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
    qkv = {
        f"{attention}.q_proj.weight": q_size,
        f"{attention}.k_proj.weight": kv_size,
        f"{attention}.v_proj.weight": kv_size,
    }
    gate_up = dict.fromkeys(
        (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"), config.intermediate_size
    )
    return LayerProducts(
        qkv=forms.matrices(qkv, config.hidden_size),
        output=forms.matrix({f"{attention}.o_proj.weight": config.hidden_size}, q_size),
        gate_up=forms.matrix(gate_up, config.hidden_size, order="gate_up"),
        down=forms.matrix(
            {f"{mlp}.down_proj.weight": config.hidden_size}, config.intermediate_size
        ),
    )


@dataclass(frozen=True, slots=True)
class _Forms:
    """Decides how tensors are kept."""

    dtype: str
    quantization: Quantization
    kinds: Mapping[str, str]

    def of(self, tensor: str, *, outer: bool = False) -> str:
        """Returns a tensor's form; `outer`: it is embedding or output matrix."""
        match self.quantization:
            case Quantization.NONE:
                return self.dtype
            case Quantization.INT8:
                return "int8"
            case Quantization.INT4:
                return "int8" if outer else "int4"
        kind = self.kinds.get(tensor)
        return self.dtype if kind is None else _kernels.gguf_format(kind)

    def matrix(
        self,
        tensors: Mapping[str, int],
        num_in: int,
        *,
        order: str = "plain",
        outer: bool = False,
    ) -> Matrix:
        """Returns one matrix; where its tensors have several forms, in the engine's type."""
        found = {self.of(tensor, outer=outer) for tensor in tensors}
        form = found.pop() if len(found) == 1 else self.dtype
        return Matrix(parts=_parts(tensors), num_in=num_in, weight_format=form, order=order)

    def matrices(self, tensors: Mapping[str, int], num_in: int) -> tuple[Matrix, ...]:
        """Returns one matrix where all tensors have one form, else one for each."""
        if len({self.of(tensor) for tensor in tensors}) == 1:
            return (self.matrix(tensors, num_in),)
        return tuple(self.matrix({name: num_out}, num_in) for name, num_out in tensors.items())

    def describe(self, products: Products) -> str:
        """Returns what to call it: what was asked for, or which GGML types were kept."""
        match self.quantization:
            case Quantization.NONE:
                return ""
            case Quantization.INT8 | Quantization.INT4:
                return str(self.quantization)
        kept = {
            self.kinds[part.tensor]
            for matrix in products.matrices()
            for part in matrix.parts
            if part.tensor in self.kinds and matrix.weight_format != self.dtype
        }
        return ",".join(sorted(kept))


def _parts(tensors: Mapping[str, int]) -> tuple[Part, ...]:
    return tuple(Part(tensor=tensor, num_out=num_out) for tensor, num_out in tensors.items())
