"""The sampling rules in plain numpy, one row at a time, in double precision."""

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams


def penalised(
    logits: NDArray[np.float64], params: SamplingParams, *, prompt: list[int], output: list[int]
) -> NDArray[np.float64]:
    """Returns logits after repetition, presence and frequency penalties and bias."""
    result = logits.astype(np.float64).copy()
    for token_id in {*prompt, *output}:
        if result[token_id] > 0:
            result[token_id] /= params.repetition_penalty
        else:
            result[token_id] *= params.repetition_penalty
    for token_id in output:
        result[token_id] -= params.frequency_penalty
    for token_id in set(output):
        result[token_id] -= params.presence_penalty
    for token_id, bias in params.logit_bias.items():
        result[token_id] += bias
    return result


def distribution(logits: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """Returns each token's probability under temperature, min-p, top-k and top-p."""
    if params.temperature <= 1e-5 or params.top_k == 1:
        probabilities = np.zeros(logits.shape[0])
        probabilities[int(np.argmax(logits))] = 1.0
        return probabilities
    scaled = (logits - logits.max()) / params.temperature
    weights = np.exp(scaled)
    order = sorted(range(len(weights)), key=lambda i: (-scaled[i], i))
    kept = [i for i in order if weights[i] >= params.min_p]
    if params.top_k:
        kept = kept[: params.top_k]
    total = sum(weights[i] for i in kept)
    reached = 0.0
    nucleus = []
    for i in kept:
        if nucleus and reached >= params.top_p * total and params.top_p < 1:
            break
        nucleus.append(i)
        reached += weights[i]
    probabilities = np.zeros(logits.shape[0])
    probabilities[nucleus] = weights[nucleus]
    return probabilities / probabilities.sum()
