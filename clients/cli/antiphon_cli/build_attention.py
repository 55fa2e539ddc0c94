"""`antiphon build-attention`: builds FlashInfer's attention kernels for this machine's device."""

import argparse
from collections.abc import Callable, Sequence

DESCRIPTION = """\
Builds FlashInfer's attention kernels for the device of this machine and the head size of a model,
which takes some minutes on few cores. Starts use them from then on, where they are faster
(engine.attention_backend). Needs `antiphon[flashinfer]` and CUDA's compiler."""
EXAMPLES = """\
examples:
  antiphon build-attention --head-dim 128
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    from antiphon_engine.api.attention_build import HEAD_DIMS

    parser.add_argument(
        "--head-dim",
        type=int,
        choices=HEAD_DIMS,
        required=True,
        help="features of a head of the model: 64, 128 or 256; the log of a start names it",
    )


def run(
    arguments: argparse.Namespace, *, run_build: Callable[[Sequence[str]], int] | None = None
) -> int:
    """Builds, and returns the exit status.

    Args:
        arguments: The flags.
        run_build: Runs the command that builds; None: in a process of its own.
    """
    from antiphon_engine.api.attention_build import build_command, run_attention_build

    return (run_build or run_attention_build)(build_command(arguments.head_dim))
