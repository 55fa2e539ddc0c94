"""The programs of a model: its layers over a step's tokens, and the logits of some of them.

Buffers are as wide as their names say: hidden size H, queries Q, keys K and as much for values,
feed-forward size F, vocabulary V.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _kernels
from antiphon_engine.cpu.weights import CpuWeights, LayerWeights
from antiphon_engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersProgram:
    """From token ids to what the last layer makes of them; fills the cache."""

    program: _kernels.Program
    hidden: NDArray[np.float32]
    """[tokens, H], of the last run; the program's own memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProgram:
    """From hidden states to logits."""

    program: _kernels.Program
    hidden: NDArray[np.float32]
    """[tokens, H]: to be written before a run."""
    logits: NDArray[np.float32]
    """[tokens, V], of the last run."""
    likeliest: NDArray[np.int32]
    """[tokens], of the last run: where each row's largest stands, of equals the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """What programs are made for."""

    team: _kernels.ThreadTeam
    isa: str
    kv_type: str
    """Of the cache: float32 or bfloat16."""
    max_tokens: int
    """Of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """How fast positions turn."""

    inverse: NDArray[np.float32]
    scale: float
    """What cosines and sines are multiplied with."""


def make_layers(
    config: ModelConfig, weights: CpuWeights, frequencies: Frequencies, settings: ProgramSettings
) -> LayersProgram:
    """Returns the program of all layers, its cache not bound yet."""
    maker = _LayersMaker(config, weights, settings)
    maker.program.add_embedding(weights.embedding, maker.x_H)
    maker.program.add_rope_angles(frequencies.inverse, frequencies.scale)
    for index, layer in enumerate(weights.layers):
        maker.add_layer(index, layer)
    return LayersProgram(program=maker.program, hidden=maker.program.buffer(maker.x_H))


def make_logits(
    config: ModelConfig, weights: CpuWeights, settings: ProgramSettings
) -> LogitsProgram:
    """Returns the program of the last norm and the output matrix, and of the likeliest tokens."""
    program = _new_program(settings)
    x_H = program.add_buffer(config.hidden_size, "float32")
    normed_H = program.add_buffer(config.hidden_size, weights.head.input_type)
    logits_V = program.add_buffer(config.vocabulary_size, "float32")
    program.add_rms_norm(x_H, weights.norm, config.norm_epsilon, normed_H)
    program.add_linear(normed_H, weights.head, out=logits_V)
    program.add_likeliest(logits_V)
    return LogitsProgram(
        program=program,
        hidden=program.buffer(x_H),
        logits=program.buffer(logits_V),
        likeliest=program.likeliest,
    )


def _new_program(settings: ProgramSettings) -> _kernels.Program:
    return _kernels.Program(settings.team, max_tokens=settings.max_tokens, isa=settings.isa)


class _LayersMaker:
    """Writes layers, one after the other, over the same buffers."""

    def __init__(self, config: ModelConfig, weights: CpuWeights, settings: ProgramSettings) -> None:
        self._epsilon = config.norm_epsilon
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.program = _new_program(settings)
        add = self.program.add_buffer
        self.x_H = add(config.hidden_size, "float32")
        self._normed_H = add(config.hidden_size, _type_for(weights, "qkv", "gate_up"))
        self._qkv_QKK = add(q_size + 2 * kv_size, "float32")
        narrow = settings.kv_type == "bfloat16" and _has_bfloat16(settings.isa)
        self._q_Q = add(q_size, "bfloat16" if narrow else "float32")
        self._attended_Q = add(q_size, _type_for(weights, "output"))
        self._activated_F = add(config.intermediate_size, _type_for(weights, "down"))

    def add_layer(self, index: int, layer: LayerWeights) -> None:
        """Adds attention and feed-forward, each normalised before and added to what came in."""
        program = self.program
        heads = {
            "num_heads": self._num_heads,
            "num_kv_heads": self._num_kv_heads,
            "head_dim": self._head_dim,
        }
        program.add_rms_norm(self.x_H, layer.attention_norm, self._epsilon, self._normed_H)
        self._add_qkv(layer)
        program.add_rope_store(
            index,
            qkv=self._qkv_QKK,
            q=self._q_Q,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            epsilon=self._epsilon,
            **heads,
        )
        program.add_attention(index, q=self._q_Q, out=self._attended_Q, **heads)
        program.add_linear(
            self._attended_Q, layer.output, bias=layer.output_bias, epilogue="add", out=self.x_H
        )
        program.add_rms_norm(self.x_H, layer.feed_forward_norm, self._epsilon, self._normed_H)
        program.add_linear(
            self._normed_H,
            layer.gate_up,
            bias=layer.gate_up_bias,
            epilogue="silu_mul",
            out=self._activated_F,
        )
        program.add_linear(
            self._activated_F, layer.down, bias=layer.down_bias, epilogue="add", out=self.x_H
        )

    def _add_qkv(self, layer: LayerWeights) -> None:
        column = 0
        for matrix in layer.qkv:
            end = column + matrix.num_out
            bias = None if layer.qkv_bias is None else layer.qkv_bias[column:end]
            self.program.add_linear(
                self._normed_H, matrix, bias=bias, out=self._qkv_QKK, out_column=column
            )
            column = end


def _type_for(weights: CpuWeights, *products: str) -> str:
    """Returns the type that rows should have which are multiplied with these matrices."""
    types = set()
    for layer in weights.layers:
        for name in products:
            matrices = getattr(layer, name)
            matrices = matrices if isinstance(matrices, tuple) else (matrices,)
            types |= {matrix.input_type for matrix in matrices}
    return types.pop() if len(types) == 1 else "float32"


def _has_bfloat16(isa: str) -> bool:
    return isa in ("avx512_bf16", "amx")
