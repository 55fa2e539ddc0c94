"""What a tiny checkpoint computes, by the transformers library, in double precision."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams
from support.sampling_reference import penalised
from support.tiny_checkpoints import load_reference

_SLACK = 1e-3
"""How far the logits of two libraries may be apart."""


class LogitReference:
    """Logits and what the documented sampling rules make of them."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = load_reference(checkpoint)

    def behind(self, prompt: Sequence[int], output: Sequence[int] = ()) -> NDArray[np.float64]:
        """Returns the logits of every place of the output and of the one after it, [N + 1, V]."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([[*prompt, *output]])).logits[0]
        return logits[len(prompt) - 1 :].double().numpy()

    def logprobs_behind(
        self, prompt: Sequence[int], output: Sequence[int] = ()
    ) -> NDArray[np.float64]:
        """Returns their logarithms as probabilities, [N + 1, V]."""
        logits = self.behind(prompt, output)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def allow(self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> bool:
        """Says whether the parameters let every token of the output stand at its place."""
        logits = self.behind(prompt, output)
        return all(
            _keep(
                penalised(logits[i], params, prompt=[*prompt], output=[*output[:i]]),
                params,
                token_id,
            )
            for i, token_id in enumerate(output)
        )

    def margins(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
    ) -> list[float]:
        """Returns how far each token of the output is from being the likeliest; 0: it is."""
        logits = self.behind(prompt, output)
        margins = []
        for i, token_id in enumerate(output):
            changed = penalised(logits[i], params, prompt=[*prompt], output=[*output[:i]])
            margins.append(float(changed.max() - changed[token_id]))
        return margins


def _keep(logits: NDArray[np.float64], params: SamplingParams, token_id: int) -> bool:
    """Says whether min-p, top-k and top-p, in this order, may keep a token, rounding aside."""
    temperature = max(params.temperature, 1e-5)
    scaled = (logits - logits.max()) / temperature
    slack = _SLACK / temperature
    if params.temperature < 1e-5:
        return bool(scaled[token_id] >= -slack)
    likelier = scaled > scaled[token_id] + slack
    if params.min_p > 0 and scaled[token_id] < np.log(params.min_p) - slack:
        return False
    if params.top_k and likelier.sum() >= params.top_k:
        return False
    kept = np.sort(scaled[scaled >= np.log(max(params.min_p, 1e-300)) - slack])[::-1]
    total = np.exp(kept[: params.top_k or None]).sum()
    return bool(np.exp(scaled[likelier]).sum() <= params.top_p * total * (1 + slack))
