import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams
from antiphon_engine.sampling_draw import FLOOR, DrawParams, TokenDraws
from support.sampling_reference import distribution

VOCABULARY = 700


def params_of(*rows: tuple[SamplingParams, float], vocabulary_size: int = VOCABULARY) -> DrawParams:
    samplings = [sampling for sampling, _ in rows]
    return DrawParams(
        temperature=np.array([s.temperature for s in samplings], np.float32),
        top_k=np.array([0 if s.top_k >= vocabulary_size else s.top_k for s in samplings]),
        top_p=np.array([s.top_p for s in samplings]),
        min_p=np.array([s.min_p for s in samplings]),
        uniform=np.array([uniform for _, uniform in rows]),
    )


def random_logits(num_rows: int, seed: int = 0, *, step: float = 0.0) -> torch.Tensor:
    """Rows of random logits; with `step` they are rounded to it, so that many are equal."""
    logits = torch.from_numpy(
        np.random.default_rng(seed).normal(0, 3, (num_rows, VOCABULARY)).astype(np.float32)
    )
    return (logits / step).round() * step if step else logits


def draw(logits: torch.Tensor, params: DrawParams) -> NDArray[np.int32]:
    """Draws a token of each row."""
    return TokenDraws().draw(logits, np.arange(len(logits)), params)


def drawn_often(
    logits: NDArray[np.float32], sampling: SamplingParams, num: int = 2000
) -> NDArray[np.float64]:
    """Returns how often each token is drawn over evenly spread uniforms, as shares."""
    uniforms = (np.arange(num) + 0.5) / num
    batch = torch.from_numpy(np.tile(logits, (num, 1)))
    tokens = draw(batch, params_of(*[(sampling, u) for u in uniforms]))
    return np.bincount(tokens, minlength=logits.shape[0]) / num


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=0),
        SamplingParams(seed=0, temperature=0.4),
        SamplingParams(seed=0, temperature=3.0),
        SamplingParams(seed=0, top_k=5),
        SamplingParams(seed=0, top_p=0.5),
        SamplingParams(seed=0, top_p=0.999),
        SamplingParams(seed=0, min_p=0.2),
        SamplingParams(seed=0, top_k=12, top_p=0.7, min_p=0.05, temperature=1.7),
        SamplingParams(seed=0, top_p=0.7, min_p=0.05),
    ],
    ids=str,
)
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_shares_of_draws_equal_the_reference_distribution(
    sampling: SamplingParams, step: float
) -> None:
    logits = random_logits(1, seed=3, step=step)[0].numpy()

    shares = drawn_often(logits, sampling)

    expected = distribution(logits.astype(np.float64), sampling)
    assert set(np.nonzero(shares)[0]) <= set(np.nonzero(expected)[0])
    np.testing.assert_allclose(shares, expected, atol=2 / 2000)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    step=st.sampled_from([0.0, 0.25, 2.0]),
    temperature=st.sampled_from([1e-3, 0.3, 1.0, 5.0, 1e9]),
    top_k=st.sampled_from([0, 1, 2, 30, VOCABULARY, VOCABULARY + 1]),
    top_p=st.sampled_from([1e-9, 0.1, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.3, 1.0]),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_every_drawn_token_is_one_that_the_filters_keep(
    *, seed: int, step: float, temperature: float, top_k: int, top_p: float, min_p: float,
    uniform: float,
) -> None:  # fmt: skip
    sampling = SamplingParams(
        seed=0, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    logits = random_logits(1, seed, step=step)
    plain = logits[0].numpy().copy()

    token = int(draw(logits, params_of((sampling, uniform)))[0])

    # The reference works in double precision: a token at the very edge may be either side.
    expected = distribution(plain.astype(np.float64), sampling)
    kept = np.nonzero(expected)[0]
    edge = plain[kept].min()
    near_edge = np.isclose(plain[token], edge, rtol=1e-5) or (
        abs(plain[token] - edge) / temperature < 1e-6  # Single precision can't tell them apart.
    )
    assert expected[token] > 0 or near_edge


def test_a_row_is_drawn_alike_alone_and_in_any_batch() -> None:
    rng = np.random.default_rng(5)
    samplings = [
        SamplingParams(seed=0),
        SamplingParams(seed=0, top_k=7),
        SamplingParams(seed=0, top_k=300, top_p=0.95),
        SamplingParams(seed=0, top_p=0.3, temperature=0.7),
        SamplingParams(seed=0, min_p=0.01),
        SamplingParams(seed=0, temperature=80.0, top_p=0.99),
    ]
    logits = random_logits(600, seed=6, step=0.25)
    rows = [(samplings[i % len(samplings)], float(rng.random())) for i in range(600)]
    alone = [int(draw(logits[i : i + 1].clone(), params_of(rows[i]))[0]) for i in range(len(rows))]

    together = draw(logits.clone(), params_of(*rows)).tolist()
    order = rng.permutation(600)
    shuffled = draw(logits[torch.from_numpy(order)], params_of(*[rows[i] for i in order]))

    assert together == alone
    assert shuffled.tolist() == [alone[i] for i in order]


def test_equal_logits_are_kept_lowest_id_first() -> None:
    logits = np.zeros(VOCABULARY, np.float32)

    shares = drawn_often(logits, SamplingParams(seed=0, top_k=4))

    assert shares[:4].tolist() == [0.25] * 4


def test_min_p_of_one_keeps_the_likeliest_alone() -> None:
    logits = random_logits(1)[0].numpy()

    shares = drawn_often(logits, SamplingParams(seed=0, min_p=1.0), num=50)

    assert shares[logits.argmax()] == 1.0


def test_tiny_top_p_keeps_the_likeliest_alone() -> None:
    logits = random_logits(1)[0].numpy()

    shares = drawn_often(logits, SamplingParams(seed=0, top_p=1e-9), num=50)

    assert shares[logits.argmax()] == 1.0


def test_enormous_temperature_draws_almost_evenly() -> None:
    logits = random_logits(1)[0].numpy()

    shares = drawn_often(logits, SamplingParams(seed=0, temperature=1e9), num=7000)

    np.testing.assert_allclose(shares, 1 / VOCABULARY, rtol=0.2)


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("top_k", [0, 50])
def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token(
    uniform: float, top_k: int
) -> None:
    logits = np.full(VOCABULARY, FLOOR, np.float32)
    logits[[3, 9]] = 1.0

    token = draw(
        torch.from_numpy(logits[None]), params_of((SamplingParams(seed=0, top_k=top_k), uniform))
    )

    assert token[0] == (3 if uniform == 0.0 else 9)


def test_rounding_at_the_edge_of_a_part_of_the_vocabulary_draws_no_impossible_token() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        logits = np.full(VOCABULARY, FLOOR, np.float32)
        logits[:512] = rng.normal(0, 2, 512)
        logits[-1] = 0.0
        weights = np.exp((logits - logits.max()).astype(np.float64))
        edge = weights[:512].sum() / weights.sum()
        uniforms = edge * (1 + np.arange(-20, 20) * 1e-8)

        tokens = draw(
            torch.from_numpy(np.tile(logits, (40, 1))),
            params_of(*[(SamplingParams(seed=0), u) for u in uniforms]),
        )

        assert (logits[tokens] > FLOOR).all()


@pytest.mark.parametrize(
    "values",
    [[np.nan], [np.inf], [-np.inf], [np.nan, np.inf, -np.inf], [3.4e38, -3.4e38], [FLOOR]],
    ids=str,
)
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 1e9])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_logits_of_any_value_give_a_token_of_the_vocabulary(
    values: list[float], temperature: float, top_p: float
) -> None:
    logits = np.resize(np.array(values, np.float32), VOCABULARY)
    sampling = SamplingParams(seed=0, temperature=temperature, top_p=top_p)

    token = draw(torch.from_numpy(logits[None]), params_of((sampling, 0.7)))

    assert 0 <= token[0] < VOCABULARY
