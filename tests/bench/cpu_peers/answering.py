"""The worker's side of its pipes. Runs in peers' environments: the standard library alone."""

import json
import sys
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], list[tuple[list[int], list[float]]]]
"""Token ids and arrivals of each stream."""


def answer_requests(generate: Generate) -> None:
    """Says that the model is loaded, and answers until nobody asks any more."""
    _say({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        streams = generate(request["prompts"], request["num_tokens"])
        _say({"streams": [{"token_ids": ids, "arrivals_s": times} for ids, times in streams]})


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)
