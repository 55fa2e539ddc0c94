"""What a tiny checkpoint computes, by the transformers library, in double precision."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.api.messages import SamplingParams
from support.sampling_reference import distribution, penalised
from support.tiny_checkpoints import load_reference


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

    def possible(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
    ) -> list[set[int]]:
        """Returns the tokens that the parameters let stand at each place of the output."""
        logits = self.behind(prompt, output)
        sets = []
        for i in range(len(output)):
            changed = penalised(logits[i], params, prompt=[*prompt], output=[*output[:i]])
            sets.append(set(np.nonzero(distribution(changed, params))[0].tolist()))
        return sets

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
