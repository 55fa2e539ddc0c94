import torch
from torch.nn import functional

from antiphon_engine.cuda.kernels.logits import ArgmaxWorkspace, argmax
from antiphon_engine.cuda.kernels.rows import embed, gate, normalise
from support import cuda_reference as reference

SIZE = 96
"""No power of two."""


def test_embeddings_are_gathered(device, dtype) -> None:
    table = torch.randn(50, SIZE, device=device, dtype=dtype)
    ids = torch.tensor([7, 0, 49, 7], device=device)
    out = torch.empty(4, SIZE, device=device, dtype=dtype)

    embed(ids.int(), table, out)

    assert torch.equal(out, table[ids])


def test_rows_are_normalised_with_and_without_weights(device, dtype, tolerance) -> None:
    x = torch.randn(3, SIZE, device=device, dtype=dtype)
    weight = torch.rand(SIZE, device=device).to(dtype)

    for chosen in (None, weight):
        out = torch.empty_like(x)
        normalise(x, out, epsilon=1e-5, weight_H=chosen)

        assert reference.relative_error(out, reference.rms_norm(x, chosen, 1e-5)) < tolerance


def test_gate_is_silu_times_up(device, dtype, tolerance) -> None:
    gate_up = torch.randn(2, 2 * 1100, device=device, dtype=dtype)
    out = torch.empty(2, 1100, device=device, dtype=dtype)

    gate(gate_up, out)

    gates, ups = gate_up.float().chunk(2, -1)
    assert reference.relative_error(out, functional.silu(gates) * ups) < tolerance


def test_argmax_is_the_first_of_the_largest(device) -> None:
    logits = torch.randn(3, 9000, device=device)
    logits[0, 8999] = 50.0
    logits[1, [17, 5000, 5001]] = 50.0
    logits[2, 4095:4097] = 50.0
    out = torch.full((3,), -1, dtype=torch.int32, device=device)
    workspace = ArgmaxWorkspace.allocate(num_rows=4, vocabulary_size=9000, device=device)

    argmax(logits, out, workspace=workspace)

    assert out.tolist() == [8999, 17, 4095]
