"""The decoder-only transformer of the Llama and Qwen families, computed by CUDA kernels.

Shape suffixes: T tokens, S some of them, R rows, B rows of a decode step, H hidden size, V
vocabulary, M blocks of the longest context.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.attention_backend import AttentionShape, StepAttention
from antiphon_engine.cuda.attention_choice import AttentionNeeds, make_attention, tune_attention
from antiphon_engine.cuda.attention_timing import ChunkTimer
from antiphon_engine.cuda.choices import FIXED, default_config, model_key
from antiphon_engine.cuda.kernels.paged_attention import Heads
from antiphon_engine.cuda.kernels.products import Product, Workspace
from antiphon_engine.cuda.kernels.rows import embed, normalise
from antiphon_engine.cuda.measured_choices import product_choices
from antiphon_engine.cuda.measuring import ProductKind, StepTuner
from antiphon_engine.cuda.step_attention import AttentionMaker
from antiphon_engine.cuda.step_buffers import StepBuffers
from antiphon_engine.cuda.step_products import ROW_BOUNDS, ProductRunner, row_bound
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows
from antiphon_engine.cuda.stored_weights import SourceLoader, StoredMatrix
from antiphon_engine.cuda.supported_models import supports
from antiphon_engine.cuda.triton_attention import TRITON
from antiphon_engine.cuda.weights import CudaWeights, take_weights
from antiphon_engine.kv_tensors import KvTensors
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.linear import Linear
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.rope import rope_frequencies
from antiphon_engine.model.transformer import Transformer

QKV, OUTPUT, GATE_UP, DOWN, HEAD = "qkv", "output", "gate_up", "down", "head"
"""The kinds of products."""

_MEASURED_CONTEXT: Final = 1024
"""Tokens of each row of the steps that are measured."""
_NUM_PARTIALS: Final = 16 << 20
"""Partial sums that programs may leave for each other: 64 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSettings:
    """How a model computes on CUDA."""

    max_step_tokens: int
    max_rows: int
    max_logits: int
    """Tokens whose logits are asked for at once."""
    context_tokens: int
    """Of the longest context: positions are below it."""
    block_tokens: int = 32
    """Of a block of the cache."""
    attention_backend: str = TRITON
    """What attends to chunks, as `engine.attention_backend` has it."""
    narrow_weights: bool = False
    """Whether layers' matrices are kept as 8-bit floats (e4m3), a scale for each row."""
    kv_dtype: torch.dtype | None = None
    """Of the cache's elements; None: what the model computes in."""
    keeps_stored: bool = False
    """Whether those that a checkpoint has as 8-bit floats stay as it has them."""
    deterministic: bool = False
    """Whether a token's numbers are its own, whatever is computed beside it; slower."""
    overlap: bool = True
    """Whether kernels start before those in front of them have ended."""
    cache_dir: Path | None = None
    """Where measured choices are kept; None: nowhere."""


class CudaTransformer:
    """A model as a sequence of launches on the current stream; nothing in it waits.

    Made with the device as PyTorch's default. What it returns lies in its own memory, and holds
    until the next call.
    """

    def __init__(
        self, config: ModelConfig, *, part: Partition, dtype: torch.dtype, settings: CudaSettings
    ) -> None:
        assert part.size == 1, "these kernels are for one device"
        refusal = supports(config, dtype, narrow_weights=settings.narrow_weights)
        assert refusal is None, refusal
        self._config = config
        self._settings = settings
        self._device = torch.get_default_device()
        with torch.device("meta"):
            # Weights that a checkpoint has in fewer bytes never take more.
            self._source: Transformer | None = Transformer(config, part=part, dtype=dtype)
        self._loaded: _Loaded | None = None
        self._kv: KvTensors | None = None
        num_tokens = max(settings.max_step_tokens, settings.max_rows, settings.max_logits)
        self._buffers = StepBuffers.allocate(
            config,
            num_tokens=num_tokens,
            dtype=dtype,
            device=self._device,
            is_narrow=settings.narrow_weights or settings.keeps_stored,
        )
        self._logits_SV = torch.empty(
            (settings.max_logits, config.vocabulary_size), dtype=torch.float32, device=self._device
        )
        self._products = ProductRunner(
            workspace=Workspace.allocate(num_partials=_NUM_PARTIALS, device=self._device),
            overlap=settings.overlap and self._device.type == "cuda",
            fixed=FIXED if settings.deterministic else None,
        )

    def load(self, checkpoint: Path, *, on_progress: OnProgress) -> None:
        """Reads the weights. Raises StartupError where they aren't exactly the model's."""
        assert self._source is not None
        keeps_stored = self._settings.keeps_stored
        loader = SourceLoader(source=self._source, config=self._config, device=self._device)
        stored = loader.load(checkpoint, keeps_stored=keeps_stored, on_progress=on_progress)
        self._take_weights(stored)

    def load_random(self, seed: int, *, on_progress: OnProgress) -> None:
        """See GraphModel."""
        assert self._source is not None
        SourceLoader(source=self._source, config=self._config, device=self._device).give_memory()
        self._source.load_random(seed, on_progress=on_progress)
        self._take_weights({})

    def bind(self, kv: KvTensors) -> None:
        """Takes the cache that later calls read and write; what was captured has the old one."""
        self._kv = kv

    def tune(self, row_counts: Sequence[int], *, budget_s: float) -> None:
        """Chooses how attention and products are computed by measuring; waits for the device.

        Comes before capturing, and before the cache holds anything. What is known from earlier
        starts costs no time; what the budget leaves out keeps its default.
        """
        if self._settings.deterministic or self._device.type != "cuda":
            return
        deadline = time.monotonic() + budget_s
        self._tune_attention()
        products = {kind: layers[0] for kind, layers in self._product_kinds().items()}
        tuner = StepTuner(
            runner=self._products,
            kinds={
                kind: ProductKind(
                    product=product,
                    in_dtype=self._buffers.hidden_TH.dtype,
                    out_dtype=torch.float32 if kind == HEAD else self._buffers.hidden_TH.dtype,
                )
                for kind, product in products.items()
            },
            make_step=self._made_up_step,
            model_key=model_key(
                products,
                num_layers=self._config.num_layers,
                overlap=self._products.overlap,
                block_tokens=self._cache.layout.block_tokens,
            ),
            known=product_choices(self._settings.cache_dir, torch.cuda.get_device_name()),
            deadline=deadline,
        )
        bounds = {row_bound(num_rows) for num_rows in row_counts}
        most = min(self._settings.max_rows, self._settings.max_logits)
        for bound in sorted(bound for bound in bounds if bound is not None):
            tuner.choose(bound, min(bound, most))
        tuner.known.save()

    def decode(self, rows: DecodeRows) -> None:
        """Launches a decode step up to its logits. May be captured."""
        buffers = self._buffers.first(rows.input_ids_B.shape[0])
        attention = self._parts.attention.for_decode(rows, self._cache.layout.block_tokens)
        self._run_layers(rows.input_ids_B, attention, buffers)
        self._run_head(buffers.hidden_TH, rows.logits_BV, buffers)

    def forward(self, rows: MixedRows) -> Tensor:
        """Launches a step of any rows and returns hidden states [T, H], before the last norm.

        May be captured.
        """
        buffers = self._buffers.first(rows.num_tokens)
        self._run_layers(rows.input_ids_T, self._parts.attention.for_rows(rows), buffers)
        return buffers.hidden_TH

    def logits(self, hidden_SH: Tensor) -> Tensor:
        """See GraphModel: float32 [S, V]."""
        num_rows = hidden_SH.shape[0]
        logits_SV = self._logits_SV[:num_rows]
        if num_rows:
            self._run_head(hidden_SH.contiguous(), logits_SV, self._buffers.first(num_rows))
        return logits_SV

    @property
    def kernels(self) -> Mapping[str, str]:
        """See GraphModel."""
        of_prompts = self._parts.attention.backend.name
        return {"attention": TRITON} | (
            {} if of_prompts == TRITON else {"attention.prompts": of_prompts}
        )

    @property
    def is_narrow(self) -> bool:
        """Whether any of the layers' matrices are 8-bit floats."""
        layers = self._parts.weights.layers
        return any(product.is_narrow for layer in layers for product in layer.products())

    @property
    def _parts(self) -> "_Loaded":
        assert self._loaded is not None, "the weights come first"
        return self._loaded

    @property
    def _cache(self) -> KvTensors:
        assert self._kv is not None, "bind comes first"
        return self._kv

    def _run_layers(self, ids_T: Tensor, attention: StepAttention, buffers: StepBuffers) -> None:
        parts, run = self._parts, self._products.run
        embed(ids_T, parts.weights.embedding_VH, buffers.hidden_TH, overlap=self._products.overlap)
        for index, (layer, heads) in enumerate(zip(parts.weights.layers, parts.heads, strict=True)):
            run(QKV, layer.qkv, buffers.hidden_TH, buffers.qkv_TQ, buffers)
            cache = self._cache.layer(index)
            attention.attend(heads, cache, buffers.qkv_TQ, buffers.attended_TA)
            run(OUTPUT, layer.output, buffers.attended_TA, buffers.hidden_TH, buffers)
            run(GATE_UP, layer.gate_up, buffers.hidden_TH, buffers.gated_TF, buffers)
            run(DOWN, layer.down, buffers.gated_TF, buffers.hidden_TH, buffers)

    def _run_head(self, hidden_SH: Tensor, logits_SV: Tensor, buffers: StepBuffers) -> None:
        weights = self._parts.weights
        normalise(
            hidden_SH,
            buffers.normed_TH,
            epsilon=self._config.norm_epsilon,
            weight_H=weights.norm_H,
            overlap=self._products.overlap,
        )
        self._products.run(HEAD, weights.head, buffers.normed_TH, logits_SV, buffers)

    def _made_up_step(self, num_rows: int) -> Callable[[], None]:
        """Returns what launches a decode step over whatever the cache holds, and writes to it."""
        layout, device = self._cache.layout, self._device
        position = min(_MEASURED_CONTEXT, self._settings.context_tokens) - 1
        num_blocks = position // layout.block_tokens + 1
        blocks = torch.arange(num_rows * num_blocks, dtype=torch.int32, device=device)
        rows = DecodeRows(
            input_ids_B=torch.arange(num_rows, dtype=torch.int32, device=device),
            positions_B=torch.full((num_rows,), position, dtype=torch.int32, device=device),
            slots_B=torch.arange(num_rows, dtype=torch.int32, device=device),
            block_tables_SM=(blocks % layout.num_blocks).view(num_rows, num_blocks),
            logits_BV=self._logits_SV[:num_rows],
        )
        return lambda: self.decode(rows)

    def _tune_attention(self) -> None:
        parts, settings = self._parts, self._settings
        buffers, heads = self._buffers.first(settings.max_step_tokens), parts.heads[0]
        timer = ChunkTimer(
            heads=heads,
            kv=self._cache,
            qkv_TQ=buffers.qkv_TQ,
            out_TA=buffers.attended_TA,
            context_tokens=settings.context_tokens,
        )
        shape, cache_dir = self._attention_shape(heads), settings.cache_dir
        tune_attention(parts.attention, shape, timer, cache_dir=cache_dir)

    def _take_weights(self, stored: dict[Linear, StoredMatrix]) -> None:
        assert self._source is not None
        weights = take_weights(
            self._source, self._config, is_narrow=self._settings.narrow_weights, stored=stored
        )
        self._source = None
        heads = _heads(self._config, weights, self._settings.context_tokens, self._device)
        needs = AttentionNeeds(
            shape=self._attention_shape(heads[0]),
            backend=self._settings.attention_backend,
            is_fixed=self._settings.deterministic,
            max_rows=self._settings.max_rows,
        )
        attention = make_attention(
            heads[0], needs, overlap=self._products.overlap, device=self._device
        )
        self._loaded = _Loaded(weights=weights, heads=heads, attention=attention)
        for kind, layers in self._product_kinds().items():
            self._products.choices[kind] = {
                bound: default_config(layers[0], bound) for bound in ROW_BOUNDS
            }

    def _attention_shape(self, heads: Heads) -> AttentionShape:
        dtype, settings = self._buffers.qkv_TQ.dtype, self._settings
        return AttentionShape.of(
            heads,
            block_tokens=settings.block_tokens,
            dtype=dtype,
            kv_dtype=settings.kv_dtype or dtype,
        )

    def _product_kinds(self) -> dict[str, list[Product]]:
        weights = self._parts.weights
        return {
            QKV: [layer.qkv for layer in weights.layers],
            OUTPUT: [layer.output for layer in weights.layers],
            GATE_UP: [layer.gate_up for layer in weights.layers],
            DOWN: [layer.down for layer in weights.layers],
            HEAD: [weights.head],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What comes with the weights."""

    weights: CudaWeights
    heads: tuple[Heads, ...]
    """Of each layer."""
    attention: AttentionMaker


def _heads(
    config: ModelConfig, weights: CudaWeights, context_tokens: int, device: torch.device
) -> tuple[Heads, ...]:
    with torch.device("cpu"):
        frequencies_F, scale = rope_frequencies(config.rope, config.head_dim)
    positions_P = torch.arange(context_tokens, dtype=torch.float32, device=device)
    angles_PF = positions_P[:, None] * frequencies_F.to(device)
    cosines, sines = angles_PF.cos() * scale, angles_PF.sin() * scale
    return tuple(
        Heads(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            cosines=cosines,
            sines=sines,
            q_norm_D=layer.q_norm_D,
            k_norm_D=layer.k_norm_D,
            norm_epsilon=config.norm_epsilon,
        )
        for layer in weights.layers
    )
