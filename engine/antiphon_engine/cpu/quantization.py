"""How weights may be kept."""

import enum


class Quantization(enum.StrEnum):
    """Values of `engine.quantization`."""

    AUTO = "auto"
    """What a checkpoint has in blocks of integers stays so."""
    NONE = "none"
    """Everything in the engine's type."""
    INT8 = "int8"
    INT4 = "int4"
    """But for embedding and output matrix, which are kept as INT8."""
