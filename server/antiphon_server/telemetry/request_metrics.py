"""From records of calls and requests to metrics."""

from collections.abc import Iterable, Sequence
from typing import Final

from antiphon_engine.api.errors import ErrorReason
from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry import metric_names as metrics
from antiphon_server.telemetry.labels import MAX_TENANTS, FirstLabels, KnownLabels
from antiphon_server.telemetry.metric_values import OTHER, Counter, Family, Histogram
from antiphon_server.telemetry.request_record import (
    CallRecord,
    Outcome,
    RequestKind,
    RequestRecord,
    StageKind,
)
from antiphon_server.times import NS_PER_S

_OK: Final = "OK"
_UNIMPLEMENTED: Final = "UNIMPLEMENTED"
_CHECK_OUTCOMES: Final = {
    ErrorReason.UNSUPPORTED_CONSTRAINT.value: "unsupported",
    ErrorReason.CONSTRAINT_TOO_COMPLEX.value: "too_complex",
}
_TOKEN_TYPES: Final = ("input", "cached_input", "output", "reasoning")


class RequestMetrics:
    """A RecordSink that counts. Written on the event loop, a few microseconds a record."""

    def __init__(self, *, methods: Iterable[str] = ()) -> None:
        """Begins at 0.

        Args:
            methods: All that are served, as `antiphon.v1.Service/Method`.
        """
        methods = list(methods)
        self._methods = KnownLabels([*methods, names.UNKNOWN_METHOD])
        self._reasons = KnownLabels([reason.value for reason in ErrorReason])
        self._models = KnownLabels()
        # A tenant stands behind a credential; callers can't make any up.
        self._tenants = FirstLabels(MAX_TENANTS)
        reasons = [(reason.value,) for reason in ErrorReason]
        self._duration = Histogram(metrics.REQUEST_DURATION)
        self._first_token = Histogram(metrics.TIME_TO_FIRST_TOKEN)
        self._per_token = Histogram(metrics.TIME_PER_OUTPUT_TOKEN)
        self._inter_token = Histogram(metrics.INTER_TOKEN_LATENCY)
        self._queue = Histogram(metrics.QUEUE_TIME)
        self._grammar_wait = Histogram(metrics.GRAMMAR_WAIT)
        self._prefill = Histogram(metrics.PREFILL_TIME)
        self._batch = Histogram(metrics.BATCH_SIZE)
        unknown = (names.GRPC, names.UNKNOWN_METHOD, _UNIMPLEMENTED)
        self._calls = Histogram(
            metrics.CALL_DURATION, [*((names.GRPC, method, _OK) for method in methods), unknown]
        )
        self._call_failures = Counter(metrics.CALL_FAILURES, reasons)
        self._requests = Counter(metrics.REQUESTS)
        self._request_failures = Counter(metrics.REQUEST_FAILURES, reasons)
        self._tokens = Counter(metrics.REQUEST_TOKENS)
        self._tenant_requests = Counter(metrics.TENANT_REQUESTS)
        self._tenant_tokens = Counter(metrics.TENANT_TOKENS)
        self._checks = Counter(
            metrics.CONSTRAINT_CHECKS,
            [(outcome,) for outcome in ("accepted", *_CHECK_OUTCOMES.values(), "broken_off")],
        )
        self._check_time = Histogram(metrics.CONSTRAINT_CHECK_TIME)
        self._write_time = Histogram(metrics.STORE_WRITE_TIME)

    def follow(self, models: Iterable[str]) -> None:
        """Tells these apart from now on: what follows `models/` in the names of served ones."""
        self._models = KnownLabels(models)

    def request_ended(self, record: RequestRecord) -> None:
        """See RecordSink."""
        # A request that names no model that is served is one to none of them.
        model = self._models.label(record.model.removeprefix("models/"))
        self._requests.add(model, record.kind.value, record.outcome.value)
        self._tenant_requests.add(self._tenants.label(record.tenant))
        if record.failure_reason:
            self._request_failures.add(self._reasons.label(record.failure_reason))
        self._note_stages(record)
        if record.kind is RequestKind.APPENDED_TURN or model == OTHER:
            return
        operation = names.CHAT if record.is_chat else names.TEXT_COMPLETION
        gen_ai = (operation, names.PROVIDER, model)
        self._duration.observe(
            *gen_ai,
            self._error_of(record),
            value=(record.ended_ns - record.received_ns) / NS_PER_S,
        )
        self._note_tokens(record, model)
        # An earlier server had the request's receipt, and perhaps its first tokens.
        if not record.is_recovered:
            self._note_latencies(record, gen_ai, model)

    def call_ended(self, record: CallRecord) -> None:
        """See RecordSink."""
        method = self._methods.label(record.method)
        duration_s = (record.ended_ns - record.started_ns) / NS_PER_S
        self._calls.observe(names.GRPC, method, record.code, value=duration_s)
        if record.reason:
            self._call_failures.add(self._reasons.label(record.reason))

    async def close(self, limit_s: float) -> None:
        """See RecordSink. Nothing waits."""

    def families(self) -> Sequence[Family]:
        """Returns what was counted. Any thread."""
        return [value.family() for value in vars(self).values() if isinstance(value, Counted)]

    def _error_of(self, record: RequestRecord) -> str:
        """Returns the conventions' error type; empty: it did not fail."""
        if record.outcome is not Outcome.FAILED:
            return ""
        return self._reasons.label(record.failure_reason)

    def _note_tokens(self, record: RequestRecord, model: str) -> None:
        amounts = (
            record.prompt_tokens,
            record.cached_prompt_tokens,
            record.output_tokens,
            record.reasoning_tokens,
        )
        for kind, amount in zip(_TOKEN_TYPES, amounts, strict=True):
            self._tokens.add(model, kind, amount=amount)
        tenant = self._tenants.label(record.tenant)
        self._tenant_tokens.add(tenant, "input", amount=record.prompt_tokens)
        self._tenant_tokens.add(tenant, "output", amount=record.output_tokens)

    def _note_latencies(self, record: RequestRecord, gen_ai: tuple[str, ...], model: str) -> None:
        """Notes what there is: a request that ended before its first token has no time to it."""
        facts, times = record.facts, record.facts.times
        if times is not None and times.grammar_wait_ns:
            self._grammar_wait.observe(model, value=times.grammar_wait_ns / NS_PER_S)
        if facts.first_step_ns:
            queued_ns = facts.first_step_ns - record.received_ns
            self._queue.observe(model, value=queued_ns / NS_PER_S)
        if not facts.first_token_ns:
            return
        to_first_ns = facts.first_token_ns - record.received_ns
        self._first_token.observe(*gen_ai, value=to_first_ns / NS_PER_S)
        prefill_ns = facts.first_token_ns - facts.first_step_ns
        self._prefill.observe(model, value=prefill_ns / NS_PER_S)
        if times is not None and times.num_steps:
            self._batch.observe(model, value=times.num_batch_rows / times.num_steps)
        # Outputs of a request run side by side.
        longest = max(record.output_sizes, default=0)
        if longest > 1:
            mean_s = (facts.last_token_ns - facts.first_token_ns) / (longest - 1) / NS_PER_S
            self._per_token.observe(*gen_ai, value=mean_s)
            num_behind_first = sum(size - 1 for size in record.output_sizes if size)
            self._inter_token.observe(model, value=mean_s, times=num_behind_first)

    def _note_stages(self, record: RequestRecord) -> None:
        for stage in record.stages:
            duration_s = (stage.end_ns - stage.start_ns) / NS_PER_S
            if stage.kind is StageKind.STORE_WRITE:
                self._write_time.observe(str(stage.attributes["write"]), value=duration_s)
            elif stage.kind is StageKind.CONSTRAINT_CHECK:
                checked = str(stage.attributes["checked"])
                self._check_time.observe(checked, value=duration_s)
                if checked == "constraint":
                    self._checks.add(_check_outcome(record))


Counted = Counter | Histogram


def _check_outcome(record: RequestRecord) -> str:
    """Returns what came of the check of a request's constraint."""
    if record.constraint:
        return "accepted"
    return _CHECK_OUTCOMES.get(record.failure_reason, "broken_off")
