"""What the kernels' Python side refuses."""

import numpy as np
import pytest

from antiphon_engine import _kernels

WIDTH, HEADS, HEAD_DIM = 32, 2, 16
BLOCKS, BLOCK_TOKENS = 4, 8


@pytest.fixture
def team():
    return _kernels.ThreadTeam(1)


@pytest.fixture
def program(team):
    """A program of one layer without products, its cache bound."""
    made = _kernels.Program(team, max_tokens=16, isa="portable")
    qkv, q, out = (made.add_buffer(width, "float32") for width in (3 * WIDTH, WIDTH, WIDTH))
    shape = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": HEAD_DIM}
    made.add_rope_angles(np.ones(HEAD_DIM // 2, np.float32), 1.0)
    made.add_rope_store(0, qkv=qkv, q=q, **shape)
    made.add_attention(0, q=q, out=out, **shape)
    pool = np.zeros((BLOCKS, BLOCK_TOKENS, HEADS, HEAD_DIM), np.float32)
    made.bind_cache([(pool, pool.copy())])
    return made


def arrays(**changed):
    """Two rows: one of three tokens, one of one behind eight others."""
    step = {
        "token_ids": np.zeros(4, np.int32),
        "positions": np.array([0, 1, 2, 8], np.int32),
        "slot_mapping": np.array([8, 9, 10, 24], np.int64),
        "row_tokens": np.array([3, 1], np.int32),
        "row_starts": np.array([0, 3], np.int32),
        "row_contexts": np.array([0, 8], np.int32),
        "row_slots": np.array([2, 0], np.int32),
        "block_tables": np.array([[2, 3], [-1, -1], [1, -1]], np.int32),
    }
    return step | changed


def test_step_that_fits_is_run(program):
    program.run_step(**arrays())

    assert program.num_runs == 1
    assert program.num_barriers == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"token_ids": np.zeros(4, np.int64)},
            "token_ids must be a C-contiguous array of",
        ),
        ({"positions": np.zeros((4, 1), np.int32)}, "positions must be an array of 1 dimensions"),
        ({"positions": np.array([0, 1, -2, 8], np.int32)}, "a place of positions is -2"),
        ({"positions": np.zeros(3, np.int32)}, "number of positions is 3, expected 4 to 4"),
        ({"slot_mapping": np.array([8, 9, 10, 32])}, "slot_mapping is 32, expected 0 to 31"),
        ({"row_tokens": np.array([3, 2], np.int32)}, "row_tokens is 2, expected 1 to 1"),
        ({"row_tokens": np.array([3, 0], np.int32)}, "row_tokens is 0"),
        ({"row_starts": np.array([0, 2], np.int32)}, "row_starts is 2, expected 3 to 3"),
        ({"row_contexts": np.array([0, 16], np.int32)}, "row_contexts is 16, expected 0 to 15"),
        ({"row_slots": np.array([2, 3], np.int32)}, "slot of row_slots is 3, expected 0 to 2"),
        ({"row_slots": np.zeros(1, np.int32)}, "number of row_slots is 1, expected 2 to 2"),
        (
            {"block_tables": np.array([[2, 4], [0, 0], [1, 0]], np.int32)},
            "block_tables is 4, expected 0 to 3",
        ),
        ({"token_ids": np.zeros(17, np.int32)}, "num_tokens is 17, expected 1 to 16"),
    ],
)
def test_step_that_does_not_fit_is_refused(program, changed, words):
    with pytest.raises(ValueError, match=words):
        program.run_step(**arrays(**changed))

    assert program.num_runs == 0


def matrix_of(order="plain"):
    return _kernels.PackedMatrix(40, 64, weight_format="float32", order=order, isa="portable")


@pytest.mark.parametrize(
    ("source", "order", "given", "words"),
    [
        (7, "plain", {"out": 0}, "there is no buffer 7"),
        (1, "plain", {"out": 0}, "num_in is 64, expected 32"),
        (0, "plain", {"out": 1}, "columns end at 40, but the buffer has 32"),
        (0, "plain", {"out": 2, "out_column": 1}, "columns end at 41, but the buffer has 40"),
        (0, "plain", {"out": 2, "epilogue": "add"}, "added to must be float32"),
        (0, "gate_up", {"out": 2}, "matrices of gates"),
        (0, "plain", {"out": 2, "epilogue": "silu_mul"}, "matrices of gates"),
        (0, "plain", {"out": 2, "bias": np.zeros(3, np.float32)}, "length is 3, expected 40"),
        (0, "plain", {"out": 2, "epilogue": "mul"}, "'mul', expected one of store, add, silu_mul"),
    ],
)
def test_product_that_does_not_fit_is_refused(team, source, order, given, words):
    program = _kernels.Program(team, max_tokens=4, isa="portable")
    program.add_buffer(64, "float32")
    program.add_buffer(32, "bfloat16")
    program.add_buffer(40, "bfloat16")

    with pytest.raises(ValueError, match=words):
        program.add_linear(source, matrix_of(order), **given)

    assert program.num_operations == 0


def test_norm_that_does_not_fit_is_refused(team):
    program = _kernels.Program(team, max_tokens=4, isa="portable")
    program.add_buffer(64, "float32")

    with pytest.raises(ValueError, match="norm's weight is 3, expected 64"):
        program.add_rms_norm(0, np.zeros(3, np.float32), 1e-6, 0)


def test_operations_that_do_not_touch_need_no_barrier(team):
    program = _kernels.Program(team, max_tokens=4, isa="portable")
    program.add_buffer(64, "float32")
    program.add_buffer(80, "float32")

    program.add_linear(0, matrix_of(), out=1)
    program.add_linear(0, matrix_of(), out=1, out_column=40)
    assert program.num_barriers == 0
    program.add_linear(0, matrix_of(), epilogue="add", out=1, out_column=39)
    assert program.num_barriers == 1


def test_rows_of_a_matrix_are_checked():
    matrix = _kernels.PackedMatrix(40, 64, weight_format="int8", isa="portable")

    with pytest.raises(ValueError, match="rows are 63 wide, expected 64"):
        matrix.pack(0, np.zeros((2, 63), np.float32))
    with pytest.raises(ValueError, match="rows"):
        matrix.pack(39, np.zeros((2, 64), np.float32))
    with pytest.raises(ValueError, match="rows must be a C-contiguous array"):
        matrix.pack(0, np.zeros((2, 128), np.float32)[:, ::2])
    with pytest.raises(ValueError, match="68"):
        matrix.pack_gguf(0, "Q8_0", np.zeros((2, 67), np.uint8))
    with pytest.raises(ValueError, match="'Q3_K', expected one of"):
        matrix.pack_gguf(0, "Q3_K", np.zeros((2, 68), np.uint8))
    with pytest.raises(ValueError, match="the matrix has 40 rows"):
        matrix.unpack(39, 2)


def test_matrix_gives_back_what_was_packed():
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(40, 64)).astype(np.float32)
    matrix = _kernels.PackedMatrix(40, 64, weight_format="float32", isa="portable")

    matrix.pack(10, rows[10:])
    matrix.pack(0, rows[:10])

    assert (matrix.unpack(0, 40) == rows).all()
