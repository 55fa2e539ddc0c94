"""How weights may be kept."""

import enum
from typing import Final


class Quantization(enum.StrEnum):
    """Values of `engine.quantization`."""

    AUTO = "auto"
    """What a checkpoint has in blocks of integers stays so."""
    NONE = "none"
    """Everything in the engine's type."""
    INT8 = "int8"
    INT4 = "int4"
    """But for embedding and output matrix, which are kept as INT8."""
    FP8 = "fp8"
    """Layers' matrices as 8-bit floats (e4m3), on CUDA."""


ON_CPU: Final = (Quantization.AUTO, Quantization.NONE, Quantization.INT8, Quantization.INT4)
ON_CUDA: Final = (Quantization.AUTO, Quantization.NONE, Quantization.FP8)
BY_TORCH: Final = (Quantization.AUTO, Quantization.NONE)
"""What the CPU's kernels know, those of CUDA, and PyTorch's operators."""
