"""How a turn generates: from the session's context to an output."""

import asyncio
import contextlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from antiphon.v1.inference_pb2 import ToolCallReady
from antiphon.v1.session_pb2 import TurnCompleted, TurnEvent
from antiphon.v1.types_pb2 import (
    Delta,
    GenerationStarted,
    Output,
    PromptPart,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import Scope
from antiphon_server.constraints.enforcement import ToolOffer, constraint_of
from antiphon_server.constraints.request import CheckedConstraint
from antiphon_server.endurance import Attempts, Endurance
from antiphon_server.generation import Event, Generation
from antiphon_server.generation_output import NewTokens
from antiphon_server.generation_spec import GenerationSpec, text_spec
from antiphon_server.output_plan import OutputNeeds, OutputPlan, plan_output
from antiphon_server.retention import RetentionHint
from antiphon_server.served_models import find_model
from antiphon_server.sessions.checkpoints import CheckpointPlace, Checkpoints, resumable_output
from antiphon_server.sessions.failures import turn_timeout
from antiphon_server.sessions.history import History, Prepared, nothing_to_answer
from antiphon_server.sessions.outages import written_at_last
from antiphon_server.sessions.records import SessionKey, TurnTokens
from antiphon_server.sessions.store import SessionStore
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.telemetry.request_record import StageKind
from antiphon_server.text.output_channels import ThinkingStart
from antiphon_server.text.output_text import OutputText
from antiphon_server.times import NS_PER_S
from antiphon_server.validation import (
    ResolvedConfig,
    is_constrained,
    must_call,
    reads_calls,
    resolve_config,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a turn generates."""

    key: SessionKey
    model: str
    history: History
    retention: RetentionHint = field(default_factory=RetentionHint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a turn that was not failed; the terminal event lacks the session's etag."""

    completed: TurnCompleted = field(default_factory=TurnCompleted)
    output: Output | None = None
    """None: a turn that appends."""
    tokens: TurnTokens = field(default_factory=TurnTokens)
    num_output_tokens: int = 0
    ends_inside_call: bool = False
    """Whether a tool call has begun and not ended."""
    new_text: Callable[[], OutputText] | None = None
    """Makes what reads the output's tokens again, without stop strings; None: there is none."""


async def generate(turn: LiveTurn, context: Context, surroundings: Surroundings) -> Outcome | None:
    """Runs a turn that generates, and tells its log of it; None: it was stopped before it began.

    Raises:
        AntiphonError: it failed.
    """
    with turn.recorder.stage(StageKind.RENDER):
        prepared = await _prepare(turn, context, surroundings)
    plan = _plan(turn, context, surroundings, prepared.prompt_ids)
    if plan.opening_ids:
        prepared = prepared.followed_by(plan.opening_ids)
    # Of a turn that this server took in, the check was its first stage, and its answer is known.
    is_unchecked = turn.earlier is not None and (
        turn.config.HasField("constraint") or bool(turn.tools)
    )
    with turn.recorder.constraint_check(is_asked=is_unchecked):
        constraint = await _constraint_of(turn, context, surroundings)
    if turn.cancel_asked and not turn.has_earlier_output:
        return None
    config = _resolve(turn, context, surroundings, num_prompt_tokens=len(prepared.prompt_ids))
    turn.message.config.CopyFrom(config.effective)
    place = CheckpointPlace(
        store=surroundings.store, key=context.key, position=turn.position, tokens=prepared.tokens
    )
    attempts = await _count_attempt(turn, place, most=surroundings.limits.max_attempts)
    spec = GenerationSpec(
        prompt_ids=prepared.prompt_ids,
        config=config,
        constraint=constraint,
        scope=Scope(tenant=context.key.tenant),
        received_ns=turn.received_ns,
        deadline_ns=turn.deadline_ns,
        traceparent=turn.recorder.context.traceparent,
        tracestate=turn.recorder.context.tracestate,
        place=turn.place,
        resumed=resumable_output(turn.earlier, config),
        endurance=Endurance(
            attempts=attempts,
            wait_s=surroundings.limits.recovery_wait_s,
            was_admitted=turn.earlier is not None,
            note=turn.recorder.note,
        ),
        retention=context.retention,
        channels=plan.channels,
        thinking=plan.thinking,
        call_scope=turn.message.name,
    )
    generation = surroundings.generators[context.model].start(spec)
    turn.recorder.follow(generation, spec)
    checkpoints = Checkpoints(
        place,
        generation,
        attempts=attempts,
        limits=surroundings.limits,
        instants=surroundings.checkpoint_instants,
    )
    checkpoints.skip_kept(len(spec.resumed.token_ids))
    await _follow(turn, generation, checkpoints, store=surroundings.store)
    tokenizer = find_model(surroundings.models, context.model).tokenizer
    again = replace(text_spec(spec), stop_strings=())
    outcome = _outcome(turn, generation, prepared)
    return replace(outcome, new_text=partial(OutputText, tokenizer, again))


async def _prepare(turn: LiveTurn, context: Context, surroundings: Surroundings) -> Prepared:
    """Renders a turn's prompt."""
    history, request = context.history, turn.request
    if turn.earlier is not None and turn.earlier.tokens.head_digest:
        return history.prepared_before(turn.earlier.tokens)
    renderer = find_model(surroundings.models, context.model).renderer
    if request.continues:
        return await surroundings.offload.run(history.prepare_to_continue, renderer, turn.head)
    if not (history.pending or request.items):
        # What was appended before it failed, or is behind the place that it goes back to.
        raise nothing_to_answer(request.path)
    return await surroundings.offload.run(history.prepare, renderer, request.items, turn.head)


def _plan(
    turn: LiveTurn, context: Context, surroundings: Surroundings, prompt_ids: Sequence[int]
) -> OutputPlan:
    """Returns how a turn's output is read. Raises AntiphonError, UNSUPPORTED_FEATURE."""
    start = None
    if turn.request.continues:
        thinks = context.history.ends_thinking
        start = ThinkingStart.OPENED if thinks else ThinkingStart.NEVER
    needs = OutputNeeds(
        reasoning=turn.config.reasoning,
        reads_calls=reads_calls(turn.config, turn.tools),
        must_call=must_call(turn.config),
        is_constrained=is_constrained(turn.config, turn.tools),
        start=start,
        path=f"{turn.request.path}.config",
    )
    return plan_output(find_model(surroundings.models, context.model), prompt_ids, needs)


async def _constraint_of(
    turn: LiveTurn, context: Context, surroundings: Surroundings
) -> CheckedConstraint | None:
    """Returns what a turn's output is held to. Raises AntiphonError: it can't be."""
    left_s = None
    # One with output from before tells of that, whatever its deadline.
    if turn.deadline_ns is not None and not turn.has_earlier_output:
        left_s = (turn.deadline_ns - surroundings.clock.monotonic_ns()) / NS_PER_S
    try:
        async with asyncio.timeout(left_s):
            return await constraint_of(
                turn.config,
                find_model(surroundings.models, context.model),
                path=f"{turn.request.path}.config",
                offer=ToolOffer(tools=turn.tools, path="session"),
                waits=True,
            )
    except TimeoutError as error:
        raise turn_timeout(turn.message.name) from error


def _resolve(
    turn: LiveTurn, context: Context, surroundings: Surroundings, *, num_prompt_tokens: int
) -> ResolvedConfig:
    """Returns what is in force for a turn that starts now. Raises AntiphonError: it can't."""
    model = find_model(surroundings.models, context.model)
    is_over = turn.deadline_ns is not None and (
        turn.deadline_ns <= surroundings.clock.monotonic_ns()
    )
    # One with output from before tells of that first.
    if is_over and not turn.has_earlier_output:
        raise turn_timeout(turn.message.name)
    _check_room(context, num_prompt_tokens, model.context_tokens)
    return resolve_config(
        turn.config,
        model=model,
        prompt_tokens=num_prompt_tokens,
        num_outputs=1,
        path=f"{turn.request.path}.config",
        draw_seed=surroundings.draws.draw_seed,
    )


async def _count_attempt(turn: LiveTurn, place: CheckpointPlace, *, most: int) -> Attempts:
    """Counts an attempt that is not a turn's first, durably before it begins.

    Raises:
        AntiphonError: INTERNAL, there were too many.
    """
    if turn.earlier is None:
        return Attempts(most=most)
    attempts = Attempts(most=most, num=turn.earlier.num_attempts)
    attempts.check()
    # Where it can't be counted, the turn is tried all the same.
    with contextlib.suppress(AntiphonError):
        await place.keep(num_attempts=attempts.num + 1, new=NewTokens(), num_kept_before=0)
    return attempts


async def _follow(
    turn: LiveTurn, generation: Generation, checkpoints: Checkpoints, *, store: SessionStore
) -> None:
    """Tells a turn's log of its generation, to the end. Raises AntiphonError: it failed.

    A call is told once the tokens up to its end are durable: whoever takes the turn up behind a
    crash reads the same call in them, so what its caller has done with it stays right.
    """

    def tell(event: Event) -> None:
        if isinstance(event, Delta):
            turn.log.append_delta(event)
            checkpoints.note_progress()
        elif isinstance(event, ToolCallReady):
            turn.log.append(TurnEvent(tool_call=event.tool_call))
        elif isinstance(event, GenerationStarted):
            turn.log.append(TurnEvent(started=event))
        elif isinstance(event, PromptPart):
            turn.log.append(TurnEvent(prompt_part=event))

    append_text, note_progress = turn.log.append_text, checkpoints.note_progress

    def tell_text(text: str) -> None:
        append_text(text)
        note_progress()

    try:
        turn.follow(generation)
        # The engine works on the prompt while the acceptance is written.
        await turn.accepted
        await generation.tell(
            tell,
            on_text=tell_text,
            before_call=lambda: written_at_last(checkpoints.keep_all, turn, store),
        )
    except AntiphonError as error:
        if error.reason is ErrorReason.TIMEOUT:
            raise turn_timeout(turn.message.name) from error
        raise
    except asyncio.CancelledError:
        if turn.is_left:
            await checkpoints.close_with_all()
        raise
    finally:
        turn.message.usage.CopyFrom(generation.usage)
        turn.message.timings.CopyFrom(generation.timings)
        checkpoints.close()
        generation.close()


def _outcome(turn: LiveTurn, generation: Generation, prepared: Prepared) -> Outcome:
    (record,) = generation.outputs
    tokens = prepared.tokens
    output = turn.log.output()
    output.finish_reason = record.finish_reason
    if record.stop_match is not None:
        output.stop_match.CopyFrom(record.stop_match)
    return Outcome(
        completed=TurnCompleted(
            finish_reason=record.finish_reason,
            stop_match=record.stop_match,
            usage=generation.usage,
            timings=generation.timings,
        ),
        output=output,
        tokens=TurnTokens(
            head_ids=tokens.head_ids,
            head_digest=tokens.head_digest,
            added_ids=tokens.added_ids,
            output_ids=array("i", record.token_ids),
        ),
        num_output_tokens=len(record.token_ids),
        ends_inside_call=record.ends_inside_call,
    )


def _check_room(context: Context, prompt_tokens: int, context_tokens: int) -> None:
    """Tells a session that has grown full from a request that never fitted."""
    if context.history.answered and prompt_tokens >= context_tokens:
        raise AntiphonError(
            ErrorReason.SESSION_FULL,
            f"The session's context is full: with this turn it has {prompt_tokens} tokens, and the"
            f" model takes {context_tokens}, an answer included. Go on in a new session.",
            metadata={
                "session": context.key.name,
                "limit": str(context_tokens),
                "prompt": str(prompt_tokens),
            },
        )
