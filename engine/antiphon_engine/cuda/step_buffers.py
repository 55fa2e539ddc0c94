"""Memory between the launches of a step, allocated once: captured steps hold its addresses.

Shape suffixes: T tokens, H hidden size, A features of all query heads, Q features of queries, keys
and values, F feed-forward size, V vocabulary.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from antiphon_engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBuffers:
    """What launches write and read."""

    hidden_TH: Tensor
    """What layers add to."""
    normed_TH: Tensor
    qkv_TQ: Tensor
    attended_TA: Tensor
    gate_up_TF2: Tensor
    gated_TF: Tensor
    narrow_TW: Tensor
    """uint8: rows as 8-bit floats, W the widest input of a layer's products; W is 0 where none are
    multiplied so."""
    narrow_scale_T: Tensor
    """float32."""

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        *,
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        is_narrow: bool = False,
    ) -> "StepBuffers":
        """Returns buffers for steps of up to so many tokens."""
        num_heads = config.num_heads + 2 * config.num_kv_heads
        widest = max(
            config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size
        )

        def rows(size: int) -> Tensor:
            return torch.zeros((num_tokens, size), dtype=dtype, device=device)

        return cls(
            hidden_TH=rows(config.hidden_size),
            normed_TH=rows(config.hidden_size),
            qkv_TQ=rows(num_heads * config.head_dim),
            attended_TA=rows(config.num_heads * config.head_dim),
            gate_up_TF2=rows(2 * config.intermediate_size),
            gated_TF=rows(config.intermediate_size),
            narrow_TW=torch.zeros(
                (num_tokens, widest if is_narrow else 0), dtype=torch.uint8, device=device
            ),
            narrow_scale_T=torch.zeros(num_tokens, dtype=torch.float32, device=device),
        )

    def first(self, num_tokens: int) -> "StepBuffers":
        """Returns views of the first rows of each."""
        return StepBuffers(
            **{field.name: getattr(self, field.name)[:num_tokens] for field in fields(self)}
        )
