import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams, StopParams
from support.sampler_plans import Row, SampledBatch
from support.sampling_reference import distribution, penalised

VOCABULARY = 97
GREEDY = SamplingParams(seed=0, temperature=0.0)


def random_logits(num_rows: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 4, (num_rows, VOCABULARY)).astype(np.float32)


def batch_of(*rows: Row) -> SampledBatch:
    return SampledBatch(list(rows), vocabulary_size=VOCABULARY)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=0, temperature=0.0),
        SamplingParams(seed=0, temperature=1e-8),
        SamplingParams(seed=0, temperature=1e-5),
        SamplingParams(seed=0, temperature=1e-3),
        SamplingParams(seed=0, top_k=1),
        SamplingParams(seed=0, top_p=1e-9),
        SamplingParams(seed=0, min_p=1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [0.0, 100.0, -100.0])
def test_parameters_that_leave_one_token_give_the_likeliest(
    sampling: SamplingParams, bias: float
) -> None:
    logits = random_logits(1)
    if bias:
        sampling = SamplingParams(
            seed=0,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            logit_bias={17: bias},
        )
    shifted = logits[0].copy()
    shifted[17] += bias

    sampled = batch_of(Row(sampling=sampling)).sample(logits, uniform=0.999)

    assert sampled.tokens.tolist() == [shifted.argmax()]


def test_of_equal_logits_the_lowest_id_wins() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [40, 30, 60]] = 5.0

    sampled = batch_of(Row(sampling=GREEDY)).sample(logits)

    assert sampled.tokens.tolist() == [30]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    repetition=st.sampled_from([0.5, 1.0, 1.5, 2.5, 10.0, 1e-3]),
    presence=st.sampled_from([-2.0, 0.0, 2.0]),
    frequency=st.sampled_from([-2.0, 0.0, 2.0]),
    bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=4),
)
def test_penalised_draws_equal_the_reference_step_after_step(
    *, seed: int, repetition: float, presence: float, frequency: float, bias: dict[int, float]
) -> None:
    sampling = SamplingParams(
        seed=0,
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    row = Row(sampling=sampling, prompt=[7] * 10 + [8, 9])
    mate = Row(sampling=GREEDY)
    batch = batch_of(mate, row)
    logits = random_logits(2, seed)

    for _ in range(6):
        expected = penalised(
            logits[1].astype(np.float64), sampling, prompt=row.prompt, output=row.output
        )
        token = int(batch.sample(logits).tokens[1])

        # Single precision may turn round what is all but equal.
        assert expected[token] == pytest.approx(expected.max(), rel=1e-5, abs=1e-4)
    assert len(set(mate.output)) == 1


def test_repetition_counts_the_whole_prompt_and_presence_only_the_output() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, 7], logits[0, 20] = 10.0, 6.0
    prompt = [7] * 10

    repetition = Row(
        sampling=SamplingParams(seed=0, temperature=0.0, repetition_penalty=2.5), prompt=prompt
    )
    presence = Row(
        sampling=SamplingParams(seed=0, temperature=0.0, presence_penalty=2.0), prompt=prompt
    )

    assert batch_of(repetition).sample(logits).tokens.tolist() == [20]
    assert batch_of(presence).sample(logits).tokens.tolist() == [7]


def test_slot_forgets_its_last_owner() -> None:
    logits = random_logits(1)
    likeliest = int(logits.argmax())
    first = Row(
        sampling=SamplingParams(
            seed=0,
            temperature=0.0,
            frequency_penalty=2.0,
            repetition_penalty=9.0,
            logit_bias={likeliest: -100.0},
        ),
        prompt=[likeliest],
    )
    batch = batch_of(first)
    assert batch.sample(logits).tokens.tolist() != [likeliest]

    for sampling in (GREEDY, SamplingParams(seed=0, temperature=0.0, frequency_penalty=1e-9)):
        batch.assign(0, Row(sampling=sampling))
        assert batch.sample(logits).tokens.tolist() == [likeliest]


def test_counts_start_anew_with_each_owner_of_a_slot() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [7, 8]] = 5.0, 4.0
    sampling = SamplingParams(
        seed=0, temperature=0.0, frequency_penalty=2.0, repetition_penalty=1.5
    )
    batch = batch_of(Row(sampling=sampling))

    for _ in range(3):
        batch.assign(0, Row(sampling=sampling))
        batch.sample(logits)
        batch.sample(logits)
        assert batch.rows[0].output == [7, 8]


def test_penalties_of_any_size_keep_tokens_in_the_vocabulary() -> None:
    extreme = [
        SamplingParams(seed=0, repetition_penalty=1e-38),
        SamplingParams(seed=0, repetition_penalty=10.0, frequency_penalty=2.0),
        SamplingParams(seed=0, frequency_penalty=-2.0, temperature=1e-5),
        SamplingParams(seed=0, repetition_penalty=1e-38, temperature=1e9, top_p=0.5),
    ]
    batch = batch_of(*[Row(sampling=s, prompt=list(range(VOCABULARY))) for s in extreme])

    for step in range(20):
        tokens = batch.sample(random_logits(4, step) * 1e6).tokens

        assert ((tokens >= 0) & (tokens < VOCABULARY)).all()


def test_end_and_stop_ids_are_not_drawn_before_the_least_output() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [5, 6, 7]] = 20.0, 19.0, 18.0
    row = Row(
        sampling=SamplingParams(seed=0, temperature=0.0, logit_bias={5: 100.0}),
        stop=StopParams(
            max_output_tokens=20,
            min_output_tokens=8,
            end_ids=(5, VOCABULARY + 3),
            stop_ids=(6, VOCABULARY - 1),
        ),
    )
    batch = batch_of(row)

    for _ in range(10):
        batch.sample(logits)

    assert row.output == [7] * 8 + [5] * 2


def test_mask_leaves_nothing_possible_yet_some_token_is_drawn() -> None:
    everything = tuple(range(VOCABULARY))
    row = Row(
        sampling=SamplingParams(seed=0, temperature=1.0, top_p=0.9),
        stop=StopParams(max_output_tokens=5, min_output_tokens=5, end_ids=everything),
    )

    [token] = batch_of(row).sample(random_logits(1)).tokens.tolist()

    assert 0 <= token < VOCABULARY


def test_logprobs_are_of_the_raw_logits_and_only_where_asked() -> None:
    sampling = SamplingParams(
        seed=0, temperature=0.3, top_k=2, repetition_penalty=3.0, logit_bias={4: 50.0}
    )
    rows = [
        Row(sampling=sampling, top_logprobs=3),
        Row(sampling=sampling),
        Row(sampling=GREEDY, top_logprobs=0),
    ]
    logits = random_logits(3)

    sampled = batch_of(*rows).sample(logits)

    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    tokens = sampled.tokens.tolist()
    told = sampled.logprobs
    assert told is not None
    assert tokens[0] == 4
    assert told.rows.tolist() == [0, 2]
    assert told.num_top.tolist() == [3, 0]
    np.testing.assert_allclose(told.chosen, [exact[0, 4], exact[2, tokens[2]]], atol=1e-4)
    assert told.top_ids[0, :3].tolist() == np.argsort(-exact[0])[:3].tolist()
    np.testing.assert_allclose(told.top[0, :3], np.sort(exact[0])[::-1][:3], atol=1e-4)
    assert (told.chosen <= 0).all()


def test_rows_are_sampled_alike_alone_and_among_any_others() -> None:
    rng = np.random.default_rng(11)
    kinds = [
        GREEDY,
        SamplingParams(seed=0),
        SamplingParams(seed=0, top_k=3, temperature=2.0),
        SamplingParams(seed=0, top_p=0.6),
        SamplingParams(seed=0, min_p=0.1, repetition_penalty=1.3),
        SamplingParams(seed=0, frequency_penalty=0.7, presence_penalty=-0.4),
        SamplingParams(seed=0, logit_bias={3: 4.0, 5: -6.0}, temperature=1.4),
    ]
    num_rows = 24
    samplings = [kinds[i % len(kinds)] for i in range(num_rows)]
    logits = rng.normal(0, 3, (8, num_rows, VOCABULARY)).astype(np.float32)
    uniform = rng.random((8, num_rows))

    together = batch_of(*[Row(sampling=s, prompt=[i]) for i, s in enumerate(samplings)])
    for step in range(8):
        order = rng.permutation(num_rows).tolist()
        together.sample(logits[step][order], slots=order, uniform=uniform[step][order])

    for i, sampling in enumerate(samplings):
        alone = batch_of(Row(sampling=sampling, prompt=[i]))
        for step in range(8):
            alone.sample(logits[step][i : i + 1], uniform=uniform[step][i : i + 1])
        assert alone.rows[0].output == together.rows[i].output


@pytest.mark.parametrize("top_k", [0, 1, VOCABULARY, VOCABULARY + 1])
@pytest.mark.parametrize("top_p", [1e-9, 0.5, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.4, 1.0])
def test_filters_at_their_edges_mixed_with_greedy_rows(
    top_k: int, top_p: float, min_p: float
) -> None:
    sampling = SamplingParams(seed=0, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = random_logits(4, seed=2)
    expected = distribution(logits[1].astype(np.float64), sampling)

    for uniform in (0.0, 0.3, 0.9999):
        batch = batch_of(*[Row(sampling=s) for s in (GREEDY, sampling, GREEDY, sampling)])
        tokens = batch.sample(logits, uniform=uniform).tokens.tolist()

        assert expected[tokens[1]] > 0
        assert tokens[0] == logits[0].argmax()
        assert tokens[2] == logits[2].argmax()


def test_step_that_samples_nothing_gives_no_tokens() -> None:
    sampled = batch_of(Row(sampling=GREEDY)).sample(np.zeros((0, VOCABULARY), np.float32), slots=[])

    assert sampled.tokens.tolist() == []
    assert sampled.logprobs is None


@pytest.mark.parametrize("num_before", [0, 1, 7])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=0, temperature=0.0, repetition_penalty=1.6),
        SamplingParams(seed=0, temperature=0.0, presence_penalty=0.9, frequency_penalty=0.3),
    ],
    ids=("repetition", "counts"),
)
def test_penalties_after_a_pause_are_those_of_a_request_that_was_never_paused(
    num_before: int, sampling: SamplingParams
) -> None:
    undisturbed = batch_of(Row(sampling=sampling, prompt=[3, 5]), Row(sampling=GREEDY))
    paused = batch_of(Row(sampling=sampling, prompt=[3, 5]), Row(sampling=GREEDY))
    # The same every time: what has occurred decides which token is next.
    logits = np.abs(random_logits(2)) * 0.3
    for _ in range(num_before):
        undisturbed.sample(logits)
        paused.sample(logits)
    resumed = paused.rows[0]

    # Its slot goes to others meanwhile, and it comes back in another.
    paused.assign(0, Row(sampling=sampling, prompt=[9]))
    paused.assign(1, resumed)

    for _ in range(num_before, 12):
        undisturbed.sample(logits[:1], slots=[0])
        paused.sample(logits[:1], slots=[1])
    assert resumed.output == undisturbed.rows[0].output
