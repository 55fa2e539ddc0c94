"""Runs a model over one whole prompt, without scheduler or executor."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.attention.base import StepRows
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.device import CPU
from antiphon_engine.kv_tensors import KvLayout, KvTensors
from antiphon_engine.model.batch import StepBatch
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model.partition import Partition
from antiphon_engine.model_plan import ModelPlanner

BLOCK_TOKENS = 8


def prompt_logits(
    checkpoint: Path,
    prompt: list[int],
    dtype: torch.dtype,
    *,
    cpu_kernels: str = "torch",
    quantization: str = "auto",
) -> Tensor:
    """Loads a checkpoint and returns the logits at every token of a prompt."""
    settings = EngineConfig(
        dtype=str(dtype).removeprefix("torch."),
        cpu_kernels=cpu_kernels,
        quantization=quantization,
        num_threads=1,
        max_rows=len(prompt),
        max_step_tokens=len(prompt),
    )
    config = parse_model_config(Fields.read(checkpoint / "config.json"))
    num_blocks = -(-len(prompt) // BLOCK_TOKENS)
    kv = KvTensors(
        KvLayout(
            num_layers=config.num_layers,
            num_blocks=num_blocks + 1,
            block_tokens=BLOCK_TOKENS,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
        )
    )
    rows = StepRows(
        num_tokens=np.array([len(prompt)], np.int32),
        token_starts=np.array([0], np.int32),
        context_tokens=np.array([0], np.int32),
        slots=np.array([0], np.int32),
        block_tables=(torch.arange(1, num_blocks + 1, dtype=torch.int32)[None],),
        slot_mapping=(torch.arange(len(prompt)) + BLOCK_TOKENS,),
    )
    with torch.inference_mode():
        planner = ModelPlanner(settings, device=CPU, part=Partition(), registry=None)
        model = planner.plan(config, checkpoint).build()
        model.load(checkpoint, on_progress=lambda stage, done, total: None)
        hidden_states = model.hidden_states(
            StepBatch(
                input_ids_T=torch.tensor(prompt, dtype=torch.int32),
                positions_T=torch.arange(len(prompt), dtype=torch.int32),
                rows=rows,
                kv=kv,
            )
        )
        return model.logits(hidden_states, torch.arange(len(prompt)))
