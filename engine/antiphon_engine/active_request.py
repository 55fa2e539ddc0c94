"""What the engine holds of a request while it works on it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.messages import GenerationRequest
from antiphon_engine.grammar.guide import Guide


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRequest:
    """A request of which some output has not ended."""

    request_id: int
    request: GenerationRequest
    """What is still to be done of it; see `rest_of`."""
    prompt: NDArray[np.int32]
    """The core's: with output that was generated before."""
    arrival_ns: int
    grammar_wait_ns: int = 0
    """What passed until its guides were there."""
    guides: tuple[Guide, ...] = ()
    """One for each output, where something holds for its tokens."""
    handles: list[int] = field(default_factory=list)
    """The core's, by output index; 0 where the output has ended."""
    next_scored: int = 0
    """The prompt's first position of which nothing is told yet, nor will be by a step in flight."""
    started: bool = False
    """Whether the front end knows of its first step."""
    held: bool = False

    @property
    def num_resumed(self) -> int:
        """How many of the prompt's last tokens are output."""
        return self.request.num_resumed_tokens

    @property
    def prompt_size(self) -> int:
        """How many tokens of the prompt are not output."""
        return len(self.prompt) - self.num_resumed
