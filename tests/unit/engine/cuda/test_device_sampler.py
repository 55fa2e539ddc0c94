"""The device's sampler and its tables beside the CPU's sampler, step after step."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.cuda.device_sampler import DeviceSampler
from antiphon_engine.cuda.draw_launches import DrawTarget
from antiphon_engine.cuda.slot_draws import SlotDraws
from antiphon_engine.cuda.slot_sampling import IN_PROMPT
from antiphon_engine.device import CPU
from antiphon_engine.grammar.base import mask_words
from antiphon_engine.grammar.masking import StepMasks
from support.graph_model import RecorderThatRepeats
from support.sampler_plans import Row, SampledBatch

VOCABULARY, NUM_SLOTS = 70, 4

SAMPLING = st.builds(
    SamplingParams,
    seed=st.just(0),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 1, 5, VOCABULARY]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.7]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -1.1]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-9, 9), max_size=3),
)
STOPS = st.builds(
    StopParams,
    max_output_tokens=st.just(100),
    min_output_tokens=st.sampled_from([0, 2]),
    end_ids=st.just((3, 200)),
    stop_ids=st.just((8,)),
)
ROWS = st.builds(
    Row,
    sampling=SAMPLING,
    stop=STOPS,
    prompt=st.just([7, 7, 9]),
    top_logprobs=st.sampled_from([None, 2]),
)


def make_draws():
    last_tokens = torch.zeros(NUM_SLOTS, dtype=torch.int32)
    return SlotDraws(
        max_rows=NUM_SLOTS, vocabulary_size=VOCABULARY, last_tokens_S=last_tokens, device=CPU
    )


def copy_of(row):
    return Row(
        sampling=row.sampling,
        stop=row.stop,
        prompt=row.prompt,
        top_logprobs=row.top_logprobs,
        output=[*row.output],
    )


def masks_for(random, rows, late):
    words = random.integers(1, 2**31, (len(rows), mask_words(VOCABULARY)), dtype=np.int32)
    return StepMasks(rows=np.array(rows, np.int64), words=words, late=np.array(late, np.int64))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(ROWS, min_size=NUM_SLOTS, max_size=NUM_SLOTS),
    newcomers=st.lists(ROWS, min_size=2, max_size=2),
    seed=st.integers(0, 99),
)
def test_tokens_and_logprobs_are_those_of_the_cpu(rows, newcomers, seed):
    random = np.random.default_rng(seed)
    sampler = DeviceSampler(make_draws(), CPU)
    plain = SampledBatch([copy_of(row) for row in rows], vocabulary_size=VOCABULARY)
    ours = SampledBatch(rows, vocabulary_size=VOCABULARY, sampler=sampler)
    for newcomer in [None, *newcomers]:
        if newcomer is not None:
            slot = int(random.integers(NUM_SLOTS))
            plain.assign(slot, copy_of(newcomer))
            ours.assign(slot, newcomer)
        for _ in range(2):
            slots = random.permutation(NUM_SLOTS)[: random.integers(1, NUM_SLOTS + 1)].tolist()
            logits = random.normal(0, 2, (len(slots), VOCABULARY)).astype(np.float32)
            masks = None if random.random() < 0.5 else masks_for(random, [0], [])
            step = {"slots": slots, "uniform": random.random(len(slots)), "masks": masks}

            expected, sampled = plain.sample(logits, **step), ours.sample(logits, **step)

            assert sampled.tokens.dtype is torch.int32
            assert sampled.tokens.tolist() == expected.tokens.tolist()
            assert (sampled.logprobs is None) == (expected.logprobs is None)
            if expected.logprobs is not None and sampled.logprobs is not None:
                assert sampled.logprobs.rows.tolist() == expected.logprobs.rows.tolist()
                assert sampled.logprobs.chosen.tolist() == expected.logprobs.chosen.tolist()
                assert sampled.logprobs.num_top.tolist() == expected.logprobs.num_top.tolist()


def penalised_row():
    return Row(sampling=SamplingParams(seed=0, temperature=0.0, frequency_penalty=1.0))


def test_late_rows_count_nothing():
    draws = make_draws()
    batch = SampledBatch(
        [penalised_row()], vocabulary_size=VOCABULARY, sampler=DeviceSampler(draws, CPU)
    )
    logits = np.zeros((1, VOCABULARY), np.float32)

    batch.sample(logits, masks=masks_for(np.random.default_rng(0), [], [0]))
    assert not (draws.tables.occurred_SV & (IN_PROMPT - 1)).any()

    batch.sample(logits)
    assert (draws.tables.occurred_SV & (IN_PROMPT - 1)).sum() == 1


def test_captured_draws_write_where_captured_steps_look():
    draws = make_draws()
    logits = torch.zeros((NUM_SLOTS, VOCABULARY))
    tokens = torch.zeros(NUM_SLOTS, dtype=torch.int32)
    recorder = RecorderThatRepeats()
    draws.capture(recorder, DrawTarget(logits_SV=logits, tokens_S=tokens), lambda *told: None)
    sampler = DeviceSampler(draws, CPU)
    batch = SampledBatch(
        [penalised_row() for _ in range(3)], vocabulary_size=VOCABULARY, sampler=sampler
    )
    logits[:3, 5] = 2.0
    tokens[:] = 5
    plan = batch.plan([0, 1, 2], np.zeros(3))

    first = sampler.sample(logits[:3], plan, likeliest=tokens[:3]).tokens.tolist()
    logits[:3, 5], logits[:3, 6] = 2.0, 1.5
    second = sampler.sample(logits[:3], plan, likeliest=tokens[:3]).tokens.tolist()

    assert (first, second) == ([5] * 3, [6] * 3)
    assert draws.num_replays == 2
    assert recorder.num_recorded == 3 * 2


def test_plain_rows_launch_no_draw():
    draws = make_draws()
    sampler = DeviceSampler(draws, CPU)
    plain = Row(sampling=SamplingParams(seed=0, temperature=0.0))
    batch = SampledBatch([plain], vocabulary_size=VOCABULARY, sampler=sampler)
    likeliest = torch.tensor([9], dtype=torch.int32)

    sampled = sampler.sample(
        torch.zeros((1, VOCABULARY)), batch.plan([0], np.zeros(1)), likeliest=likeliest
    )

    assert sampled.tokens is likeliest
