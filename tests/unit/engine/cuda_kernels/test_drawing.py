"""Draws beside a naive one that sorts, and what is done before and behind them beside operators."""

import numpy as np
import pytest
import torch

from antiphon_engine.api.messages import GenerationRequest, SamplingParams, StopParams
from antiphon_engine.cuda.draw_launches import DrawTarget, OperatorDraws
from antiphon_engine.cuda.draw_slab import DrawArrays
from antiphon_engine.cuda.kernels.drawing import DrawWorkspace, RowDrawer
from antiphon_engine.cuda.slot_sampling import SlotSampling
from antiphon_engine.device import Device

NUM_ROWS = 4
CHOICES = {
    "temperature": [0.3, 1.0, 1.7],
    "top_k": [0, 2, 3, 50],
    "top_p": [1.0, 0.9, 0.3, 1e-6],
    "min_p": [0.0, 0.05, 1.0],
}
NO_IDS = np.zeros(0, np.int32)


def naive_draw(logits, sampling, uniform):
    plain = np.nan_to_num(logits, nan=-1e30).clip(-1e30, 1e30)
    below = (plain.max() - plain) / np.float32(sampling.temperature)
    weights = np.exp(-below).astype(np.float64)
    left = np.argsort(below, kind="stable")
    if sampling.min_p > 0:
        left = left[below[left] <= abs(np.log(np.float32(sampling.min_p)))]
    if sampling.top_k > 0:
        left = left[: sampling.top_k]
    if sampling.top_p < 1:
        reached = np.cumsum(weights[left])
        short = reached - weights[left] < sampling.top_p * reached[-1]
        left = left[: max(1, int(short.sum()))]
    left = np.sort(left)
    reached = np.cumsum(weights[left])
    place = np.searchsorted(reached, uniform * reached[-1], side="right")
    return left[min(int(place), len(left) - 1)]


class Slots:
    """Tables of some slots on a device, and who draws for them."""

    def __init__(self, device, size, *, chunk, few_rows=32, kernels=True):
        self._device = device
        self.tables = SlotSampling(
            num_slots=NUM_ROWS + 1, vocabulary_size=size, device=Device(device.type)
        )
        self.last_tokens = torch.zeros(NUM_ROWS + 1, dtype=torch.int32, device=device)
        workspace = DrawWorkspace.allocate(
            num_rows=NUM_ROWS + 2, vocabulary_size=size, device=device, chunk=chunk
        )
        self._launches = (
            RowDrawer(self.tables, self.last_tokens, workspace, few_rows)
            if kernels
            else OperatorDraws(self.tables, self.last_tokens)
        )

    def write(self, slot, sampling, *, prompt=NO_IDS, output=NO_IDS, stop=None):
        request = GenerationRequest(
            prompt=b"", sampling=sampling, stop=stop or StopParams(max_output_tokens=9)
        )
        self.tables.write(slot, request, prompt=prompt, output=output)

    def draw(self, logits, rows, slots, uniforms, *, masks=None, words=None, num_searches=2):
        """Returns a token for each row of logits, -1 where none was drawn, and the logits."""

        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=self._device)

        self.tables.upload_new()
        uniforms = torch.tensor(uniforms, dtype=torch.float64, device=self._device)
        words = np.zeros((1, 1), np.int32) if words is None else words
        tokens = torch.full((len(logits),), -1, dtype=torch.int32, device=self._device)
        logits = torch.from_numpy(logits.copy()).to(self._device)
        step = DrawArrays(
            rows_D=ints(rows),
            slots_D=ints(slots),
            positions_D=ints([1] * len(rows)),
            masks_D=ints([-1] * len(rows) if masks is None else masks),
            uniforms_D=uniforms,
            words_DW=torch.from_numpy(words).to(self._device),
        )
        target = DrawTarget(logits_SV=logits, tokens_S=tokens)
        self._launches.launch(step, target, num_searches=num_searches)
        return tokens.tolist(), logits.cpu()


@pytest.mark.parametrize(
    ("size", "chunk", "few_rows", "has_ties"),
    [
        (70, 16, 0, True),
        pytest.param(97, 64, 32, False, marks=pytest.mark.device),
        pytest.param(9000, 4096, 32, True, marks=pytest.mark.device),
        pytest.param(151936, 4096, 32, False, marks=pytest.mark.device),
        pytest.param(151936, 4096, 0, True, marks=pytest.mark.device),
    ],
)
def test_token_is_the_one_that_sorting_finds(device, size, chunk, few_rows, has_ties):
    random = np.random.default_rng(size + chunk)
    logits = random.normal(0, 3, (NUM_ROWS + 1, size)).astype(np.float32)
    if has_ties:
        logits = np.round(logits)
    logits[0, 1], logits[0, 2] = np.nan, -np.inf
    chosen = {name: random.choice(some, NUM_ROWS).tolist() for name, some in CHOICES.items()}
    # The edges: no filter, and all ties of the likeliest stay by min-p, two of them by top-k.
    chosen["top_k"][0], chosen["top_p"][0] = 0, 1.0
    chosen["top_k"][2], chosen["min_p"][2] = 2, 1.0
    # Top-k leaves two of three ties, in other chunks each, and top-p one of these.
    logits[1] = -9.0
    logits[1, [5, 20, 40, 60]] = 4.0, 3.0, 3.0, 3.0
    chosen["temperature"][1], chosen["min_p"][1] = 1.7, 0.0
    chosen["top_k"][1], chosen["top_p"][1] = 3, 0.6
    columns = zip(*chosen.values(), strict=True)
    params = [SamplingParams(seed=0, **dict(zip(chosen, row, strict=True))) for row in columns]
    uniforms = random.random(NUM_ROWS)
    uniforms[1] = 0.99
    slots = Slots(device, size, chunk=chunk, few_rows=few_rows)
    # In another order, one row is not drawn, and padding lies between.
    order, of_row = [3, 1, -1, 0, 2], [4, 0, 1, 3]
    for row, sampling in enumerate(params):
        slots.write(of_row[row], sampling)

    tokens, _ = slots.draw(
        logits, order, [of_row[max(row, 0)] for row in order], [uniforms[row] for row in order]
    )

    expected = [naive_draw(*row) for row in zip(logits, params, uniforms, strict=False)]
    assert tokens == [*expected, -1]
    assert [slots.last_tokens[slot].item() for slot in of_row] == expected


def fill(slots, size):
    """What each slot asks for: nothing, penalties, edits of logits, all of it."""
    prompt, output = np.array([5, 5, 6], np.int32), np.array([6, 7, 7], np.int32)
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.3}
    biases = {"logit_bias": {size - 1: 2.5, 7: -1.25, 40: 0.1}}
    early = StopParams(max_output_tokens=9, min_output_tokens=3, end_ids=(2,), stop_ids=(41, 9))
    greedy = {"seed": 0, "temperature": 0.0}
    slots.write(0, SamplingParams(**greedy))
    slots.write(1, SamplingParams(**greedy, **penalties), prompt=prompt, output=output)
    slots.write(2, SamplingParams(**greedy, **biases), stop=early)
    slots.write(
        3, SamplingParams(**greedy, **penalties, **biases), prompt=prompt, output=output, stop=early
    )


@pytest.mark.parametrize("masked_row", [0, 3])
def test_what_is_asked_of_logits_is_done_as_by_operators(device, masked_row):
    size, chunk = 75, 32
    random = np.random.default_rng(masked_row)
    logits = random.normal(0, 3, (NUM_ROWS, size)).astype(np.float32)
    words = random.integers(-(2**31), 2**31, (2, 3), dtype=np.int64).astype(np.int32)
    # It allows a token that ends, before the least output too.
    words[1, 0] |= 1 << 2
    masks = [1 if row == masked_row else -1 for row in range(NUM_ROWS)]
    ours = Slots(device, size, chunk=chunk)
    plain = Slots(torch.device("cpu"), size, chunk=chunk, kernels=False)
    for slots in (ours, plain):
        fill(slots, size)
    step = (logits, [0, 1, 2, 3], [0, 1, 2, 3], [0.5] * 4)

    told = ours.draw(*step, masks=masks, words=words, num_searches=0)
    expected = plain.draw(*step, masks=masks, words=words, num_searches=0)

    assert torch.equal(told[1], expected[1])
    assert told[0] == expected[0]
    assert torch.equal(ours.tables.occurred_SV.cpu(), plain.tables.occurred_SV)
    assert torch.equal(ours.last_tokens.cpu(), plain.last_tokens)


@pytest.mark.device
def test_token_does_not_depend_on_mates(device):
    size, sampling = 97, SamplingParams(seed=0, temperature=1.1, top_p=0.8)
    logits = np.random.default_rng(1).normal(0, 1, (3, size)).astype(np.float32)
    slots = Slots(device, size, chunk=32)
    for slot in range(3):
        slots.write(slot, sampling)

    alone, _ = slots.draw(logits[:1], [0], [0], [0.37], num_searches=1)
    beside, _ = slots.draw(logits, [2, 0, 1], [1, 0, 2], [0.9, 0.37, 0.1])

    assert beside[0] == alone[0]
