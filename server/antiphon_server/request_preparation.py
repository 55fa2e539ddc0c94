"""From a request as it was sent to what the engine needs of it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    ValidateConstraintRequest,
    ValidateConstraintResponse,
)

from antiphon_engine.api.messages import Scope
from antiphon_server.constraints.enforcement import constraint_of
from antiphon_server.constraints.trying import try_constraint
from antiphon_server.generation_spec import GenerationSpec
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.prompt import render_prompt
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.trace_context import TraceContext
from antiphon_server.validation import check_config, resolve_config, resolve_num_outputs
from antiphon_server.validation_fields import join_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for a request beside what it says itself. Instants are on the monotonic clock."""

    scope: Scope
    received_ns: int
    deadline_ns: int | None = None
    trace: TraceContext = field(default_factory=TraceContext)
    path: str = ""
    """What stands before its fields' names where one is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is known of a request that could be run, before its prompt is looked at."""

    model: ServedModel
    generator: Generator
    num_outputs: int


class RequestPreparation:
    """Checks requests and renders their prompts. Used from one event loop."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        generators: Mapping[str, Generator],
        *,
        offload: Offload,
        random_source: random.Random,
    ) -> None:
        """Models and generators are by the models' names; seeds come from `random_source`."""
        self._models: Final = models
        self._generators: Final = generators
        self._offload: Final = offload
        self._random: Final = random_source

    def check(self, request: GenerateRequest, terms: Terms) -> Checked:
        """Checks what takes no time; waits for nothing.

        Raises:
            AntiphonError: it is refused.
        """
        path = terms.path
        model = find_model(self._models, request.model)
        check_config(request.config, model=model, path=join_path(path, "config"))
        asked = request.num_outputs if request.HasField("num_outputs") else None
        num_outputs = resolve_num_outputs(asked, model=model, path=join_path(path, "num_outputs"))
        generator = self._generators[model.name]
        generator.check(terms.scope.tenant, deadline_ns=terms.deadline_ns)
        return Checked(model=model, generator=generator, num_outputs=num_outputs)

    async def try_constraint(
        self, request: ValidateConstraintRequest
    ) -> ValidateConstraintResponse:
        """Says whether requests may use a constraint. Raises AntiphonError: nobody can say."""
        return await try_constraint(request, find_model(self._models, request.model))

    async def render(
        self, request: GenerateRequest, checked: Checked, terms: Terms
    ) -> GenerationSpec:
        """Renders the prompt of a request that was checked, and resolves how to generate.

        Its constraint is looked into before that.

        Raises:
            AntiphonError: it is refused.
        """
        model, path = checked.model, terms.path
        constraint = await constraint_of(request.config, model, path=join_path(path, "config"))
        rendered = await render_prompt(
            request.prompt, model=model, offload=self._offload, path=join_path(path, "prompt")
        )
        config = resolve_config(
            request.config,
            model=model,
            prompt_tokens=len(rendered.token_ids),
            num_outputs=checked.num_outputs,
            path=join_path(path, "config"),
            draw_seed=lambda: self._random.getrandbits(64),
        )
        return GenerationSpec(
            prompt_ids=rendered.token_ids,
            config=config,
            num_outputs=checked.num_outputs,
            constraint=constraint,
            scope=terms.scope,
            received_ns=terms.received_ns,
            deadline_ns=terms.deadline_ns,
            traceparent=terms.trace.traceparent,
            tracestate=terms.trace.tracestate,
        )
