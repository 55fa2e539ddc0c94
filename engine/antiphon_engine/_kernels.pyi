"""Computation on the CPU: packed weights, and models as programs over buffers.

Arrays are C-contiguous and of exactly the type that is named; bfloat16 crosses as the uint16 of its
bits. Whatever doesn't fit is a ValueError that names it.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

def best_isa() -> str:
    """Returns the best of this machine's instruction sets.

    They are portable, avx2, avx512, avx512_bf16 and amx; each has all of those before it. Two more
    are for products with weights that are integers, which then take rows as integers too, and stand
    on one of these for all else: avx_vnni on avx2, avx512_vnni on avx512.
    """

def has_isa(isa: str) -> bool:
    """Says whether this machine has an instruction set."""

def mask_logits(
    logits: NDArray[np.float32], rows: NDArray[np.int64], words: NDArray[np.int32], *, floor: float
) -> None:
    """Puts logits [S, V] of `rows` [G] to the floor where `words` [G, W] have no bit, in place.

    Bit i % 32 of word i // 32 is token i's. Releases the interpreter's lock.
    """

def checksum(values: NDArray[np.uint8]) -> int:
    """Returns 64 bits that are others for other bytes, but by chance. Releases the lock."""

def evict(values: NDArray[np.uint8]) -> None:
    """Takes values [N] out of the processor's caches, so that they are next read from memory."""

def gguf_format(gguf_type: str) -> str:
    """Returns the format that keeps blocks of Q4_0, Q5_0, Q8_0, Q4_K, Q5_K or Q6_K."""

def packed_bytes(num_out: int, num_in: int, *, weight_format: str, order: str = "plain") -> int:
    """Returns the memory that a `PackedMatrix` takes."""

@final
class RowDraw:
    """Draws tokens from rows of logits. Keeps the memory that it works in; one thread at a time."""

    def __init__(self, *, isa: str) -> None: ...
    def draw(
        self,
        logits: NDArray[np.float32],
        rows: NDArray[np.int64],
        *,
        temperature: NDArray[np.float32],
        top_k: NDArray[np.int64],
        top_p: NDArray[np.float64],
        min_p: NDArray[np.float64],
        uniform: NDArray[np.float64],
    ) -> NDArray[np.int32]:
        """Returns a column for each of `rows` [R] of logits [S, V], which are overwritten.

        Releases the interpreter's lock.

        Args:
            logits: [S, V]
            rows: [R]
            temperature: [R], above 0.
            top_k: [R] keeps so many of the largest; 0: off.
            top_p: [R] keeps the largest that reach this share; 1: off.
            min_p: [R] keeps what is at least so likely relative to the largest; 0: off.
            uniform: [R] in [0, 1): which point of the distribution.
        """

    def likeliest(self, logits: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns the column of the largest of each of `rows` [R] of logits [S, V]; as `draw`.

        Of equals the first; what is no number is less than all others.
        """

@final
class PackedMatrix:
    """A matrix [num_out, num_in] in the order in which products read it; zeros at first.

    `weight_format`: float32, bfloat16, int8, int6, int5 or int4. `order`: plain; or gate_up, of
    gates above as many rows to multiply with. `isa`: what products with it use.
    """

    def __init__(
        self, num_out: int, num_in: int, *, weight_format: str, order: str = "plain", isa: str
    ) -> None: ...
    def pack(self, first_row: int, rows: NDArray[np.generic]) -> None:
        """Takes rows [n, num_in] of float32 or bfloat16. Releases the interpreter's lock.

        Threads may pack different rows at the same time.
        """

    def pack_gguf(self, first_row: int, gguf_type: str, rows: NDArray[np.uint8]) -> None:
        """Takes rows [n, bytes of a row] of blocks; as `pack`."""

    def unpack(self, first_row: int, num_rows: int) -> NDArray[np.float32]:
        """Returns rows [num_rows, num_in] as products see them."""

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """All that the matrix is made of beside its shape, in its own memory.

        What is written there makes the matrix that it was read from, where shape, format,
        instruction set and library are the same.
        """

    @property
    def num_out(self) -> int: ...
    @property
    def num_in(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def weight_format(self) -> str: ...
    @property
    def input_type(self) -> str:
        """The type of rows that products take as they are: float32 or bfloat16."""

@final
class ThreadTeam:
    """Threads that compute together, the caller among them. One thread at a time may use it.

    Raises:
        RuntimeError: a thread can't be started.
    """

    def __init__(self, num_threads: int, *, pin: bool = True) -> None: ...
    @property
    def num_threads(self) -> int: ...

@final
class Program:
    """A model as operations over buffers, [max_tokens, width] each, that are allocated once.

    Described once and then run for each step, by one thread at a time. `source`, `out` and the like
    are numbers that `add_buffer` has returned.
    """

    def __init__(self, team: ThreadTeam, *, max_tokens: int, isa: str) -> None: ...
    def add_buffer(self, width: int, element_type: str) -> int:
        """Returns the number of a new buffer, float32 or bfloat16, all zeros."""

    def add_embedding(self, table: PackedMatrix, out: int) -> None:
        """Writes the table's rows that token ids name."""

    def add_rope_angles(self, inverse_frequencies: NDArray[np.float32], scale: float) -> None:
        """Computes the rotations of positions; once, before what rotates."""

    def add_rms_norm(
        self, source: int, weight: NDArray[np.float32], epsilon: float, out: int
    ) -> None:
        """Divides rows by their root mean square, and multiplies them by the weight."""

    def add_linear(
        self,
        source: int,
        matrix: PackedMatrix,
        *,
        bias: NDArray[np.float32] | None = None,
        epilogue: str = "store",
        out: int,
        out_column: int = 0,
    ) -> None:
        """Multiplies rows with a matrix, and stores the products from a column on.

        `epilogue`: store; add, to what is there; or silu_mul, which a matrix of order gate_up has.
        """

    def add_rope_store(
        self,
        layer: int,
        *,
        qkv: int,
        q: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: NDArray[np.float32] | None = None,
        k_norm: NDArray[np.float32] | None = None,
        epsilon: float = 0.0,
    ) -> None:
        """Brings rotated queries to `q`, and rotated keys and values into a layer's cache."""

    def add_attention(
        self,
        layer: int,
        *,
        q: int,
        out: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        sliding_window: int = 0,
    ) -> None:
        """Attends to the cache, the step's own tokens among it. `sliding_window`: 0 for none."""

    def add_likeliest(self, source: int) -> None:
        """Looks for the largest of each row of a float32 buffer; once."""

    def bind_cache(self, layers: Sequence[tuple[NDArray[np.generic], NDArray[np.generic]]]) -> None:
        """Says where each layer's keys and values lie: [blocks, block_tokens, heads, head_dim]."""

    def run(self, num_tokens: int) -> None:
        """Runs a program that needs nothing but its buffers. Releases the interpreter's lock."""

    def run_step(
        self,
        *,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        slot_mapping: NDArray[np.int64],
        row_tokens: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        row_contexts: NDArray[np.int32],
        row_slots: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> None:
        """Runs the program for a step: T tokens in R rows. Releases the interpreter's lock.

        Args:
            token_ids: [T]
            positions: [T]
            slot_mapping: [T] block * block_tokens + offset: where keys and values go.
            row_tokens: [R] how many tokens each row has.
            row_starts: [R] where they begin in [T].
            row_contexts: [R] tokens in the cache before the step.
            row_slots: [R] each row's line of the block tables.
            block_tables: [S, M] the blocks of slots; behind a row's end anything.
        """

    def buffer(self, buffer: int) -> NDArray[np.float32]:
        """Returns a view of a buffer, bfloat16 as uint16; it keeps the program alive."""

    @property
    def likeliest(self) -> NDArray[np.int32]:
        """Where each row's largest stands, of equals the first: a view of [max_tokens]."""

    @property
    def num_operations(self) -> int: ...
    @property
    def num_barriers(self) -> int:
        """How often all threads wait for each other in a run."""

    @property
    def num_runs(self) -> int: ...
