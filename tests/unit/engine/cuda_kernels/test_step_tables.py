"""What a captured step does around the model, beside PyTorch's operators."""

import torch

from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.cuda.kernels.step_tables import begin_step, keep_last_tokens
from antiphon_engine.cuda.step_edges import OperatorEdges, StepStart


def test_tables_and_ids_are_those_of_the_operators(device):
    tables = [DeviceTables(device, num_slots=6, max_blocks=5) for _ in range(2)]
    slots, tokens = torch.tensor([4, 1]).int(), torch.tensor([77, 78]).int()
    # The last is from a step before.
    deltas = torch.tensor([[4, 0, 9], [1, 3, 8], [4, 1, 5]]).int().to(device)
    num_deltas = torch.tensor([2]).int().to(device)
    ids, gathered = torch.tensor([5, -1, -1, 0]).int(), torch.tensor([-1, 4, 1, -1]).int()
    known = [torch.full((4,), -7, dtype=torch.int32, device=device) for _ in range(2)]
    starts = [
        StepStart(
            deltas_D3=deltas,
            num_deltas_1=num_deltas,
            input_ids_T=ids.to(device),
            gather_slots_T=gathered.to(device),
            known_ids_T=out,
        )
        for out in known
    ]
    plain = OperatorEdges(tables[0])

    plain.keep(slots.to(device), tokens.to(device))
    plain.begin(starts[0])
    keep_last_tokens(slots.to(device), tokens.to(device), tables[1].last_tokens_S)
    begin_step(starts[1], tables[1])

    assert known[1].tolist() == known[0].tolist() == [5, 77, 78, 0]
    assert torch.equal(tables[1].blocks_SM, tables[0].blocks_SM)
    assert tables[1].blocks_SM.sum() == 9 + 8
    assert torch.equal(tables[1].last_tokens_S, tables[0].last_tokens_S)
