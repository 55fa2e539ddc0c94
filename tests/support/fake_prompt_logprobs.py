"""What engines without a model say of prompts."""

from array import array

from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.api.prompt_logprobs import PromptLogprobs


def foretold(token_id: int) -> float:
    """The log-probability of a prompt's token; no token is as likely as another nearby."""
    return -((token_id % 64) + 1) / 8


def fake_prompt_logprobs(
    request_id: int, request: GenerationRequest, first: int, end: int
) -> PromptLogprobs:
    """Returns what is told of a prompt's positions from `first` to before `end`.

    The likeliest tokens are the token itself and those behind it by their ids.
    """
    num_top = request.prompt_logprobs or 0
    token_ids = array("i", request.prompt)[first:end]
    tops = [(token_id, i) for token_id in token_ids for i in range(num_top)]
    return PromptLogprobs(
        request_id=request_id,
        first_position=first,
        chosen=array("f", [foretold(token_id) for token_id in token_ids]).tobytes(),
        num_top=num_top,
        top_ids=array("i", [token_id + i for token_id, i in tops]).tobytes(),
        top_logprobs=array("f", [foretold(token_id) - i for token_id, i in tops]).tobytes(),
    )
