"""How the process that builds kernels for attention is told what to build."""

import sys
from collections.abc import Sequence
from typing import Final

from antiphon_engine.api.parent_process import run_at_terminal

HEAD_DIMS: Final = (64, 128, 256)
"""Head sizes that FlashInfer has kernels for."""


def build_command(head_dim: int) -> list[str]:
    """Returns the command that builds for a head size, by this process's Python."""
    return [
        sys.executable, "-m", "antiphon_engine.cuda.attention_build", "--head-dim", str(head_dim)
    ]  # fmt: skip


def run_attention_build(command: Sequence[str]) -> int:
    """Builds in a process of its own, which prints its progress; returns its exit status."""
    return run_at_terminal(command)
