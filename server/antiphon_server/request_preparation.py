"""From a request as it was sent to what the engine needs of it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    ValidateConstraintRequest,
    ValidateConstraintResponse,
)

from antiphon_engine.api.messages import Scope
from antiphon_server.constraints.enforcement import ToolOffer, constraint_of
from antiphon_server.constraints.trying import try_constraint
from antiphon_server.generation_spec import GenerationSpec
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.output_plan import OutputNeeds, OutputPlan, plan_output
from antiphon_server.prompt import asks_to_think, render_prompt
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.telemetry.call_trace import CallTrace
from antiphon_server.telemetry.request_record import RequestKind, StageKind
from antiphon_server.telemetry.request_recorder import RequestRecorder, RequestStart
from antiphon_server.trace_context import TraceContext
from antiphon_server.validation import (
    check_config,
    check_tool_choice,
    is_constrained,
    must_call,
    reads_calls,
    resolve_config,
    resolve_num_outputs,
)
from antiphon_server.validation_fields import join_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for a request beside what it says itself. Instants are on the monotonic clock."""

    scope: Scope
    received_ns: int
    deadline_ns: int | None = None
    trace: TraceContext = field(default_factory=TraceContext)
    """What the request is a part of."""
    has_own_trace: bool = False
    """Whether the request said so itself, and not its call."""
    call: CallTrace | None = None
    """What brought it; None: nobody hears of it."""
    path: str = ""
    """What stands before its fields' names where one is at fault."""


def start_of(request: GenerateRequest, terms: Terms, kind: RequestKind) -> RequestStart:
    """Returns what is known of a request at its receipt."""
    return RequestStart(
        kind=kind,
        received_ns=terms.received_ns,
        context=terms.trace,
        is_own_context=terms.has_own_trace,
        call=terms.call,
        is_chat=request.prompt.WhichOneof("kind") == "conversation",
        tenant=terms.scope.tenant,
    )


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
        config_path = join_path(path, "config")
        check_config(request.config, model=model, path=config_path)
        check_tool_choice(request.config, request.prompt.conversation.tools, config_path)
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
        self,
        request: GenerateRequest,
        checked: Checked,
        terms: Terms,
        recorder: RequestRecorder,
    ) -> GenerationSpec:
        """Renders the prompt of a request that was checked, and resolves how to generate.

        Its constraint is looked into before that; the recorder is told how long either takes.

        Raises:
            AntiphonError: it is refused.
        """
        model, path = checked.model, terms.path
        offer = ToolOffer(
            tools=request.prompt.conversation.tools, path=join_path(path, "prompt.conversation")
        )
        recorder.note_model(model.name)
        is_held = request.config.HasField("constraint") or bool(offer.tools)
        with recorder.constraint_check(is_asked=is_held):
            constraint = await constraint_of(
                request.config, model, path=join_path(path, "config"), offer=offer
            )
        with recorder.stage(StageKind.RENDER):
            rendered = await render_prompt(
                request.prompt,
                model=model,
                offload=self._offload,
                path=join_path(path, "prompt"),
                reasoning=asks_to_think(request.config.reasoning),
            )
        recorder.note_input(lambda: rendered.text)
        plan = self._plan_output(request, rendered.token_ids, model, path)
        prompt_ids = [*rendered.token_ids, *plan.opening_ids]
        config = resolve_config(
            request.config,
            model=model,
            prompt_tokens=len(prompt_ids),
            num_outputs=checked.num_outputs,
            path=join_path(path, "config"),
            draw_seed=lambda: self._random.getrandbits(64),
        )
        return GenerationSpec(
            prompt_ids=prompt_ids,
            config=config,
            channels=plan.channels,
            thinking=plan.thinking,
            call_scope=f"{self._random.getrandbits(128):032x}",
            num_outputs=checked.num_outputs,
            constraint=constraint,
            scope=terms.scope,
            received_ns=terms.received_ns,
            deadline_ns=terms.deadline_ns,
            traceparent=recorder.context.traceparent,
            tracestate=recorder.context.tracestate,
        )

    def _plan_output(
        self, request: GenerateRequest, prompt_ids: Sequence[int], model: ServedModel, path: str
    ) -> OutputPlan:
        """Returns how outputs are read: what follows a text is text."""
        config, conversation = request.config, request.prompt.conversation
        if request.prompt.WhichOneof("kind") != "conversation":
            return OutputPlan()
        needs = OutputNeeds(
            reasoning=config.reasoning,
            reads_calls=reads_calls(config, conversation.tools),
            must_call=must_call(config),
            is_constrained=is_constrained(config, conversation.tools),
            path=join_path(path, "config"),
        )
        return plan_output(model, prompt_ids, needs)
