"""Every metric that the server has.

Those that OpenTelemetry's conventions know have their names, units and buckets; the others begin
with `antiphon.`. Prometheus sees dots as underscores, the unit behind the name, and `_total` behind
what only grows.
"""

from typing import Final

from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry.metric_values import Instrument, InstrumentKind

MODEL: Final = "model"
"""Of the project's own metrics: what follows `models/`, of one that is served."""
_GEN_AI: Final = (
    names.GEN_AI_OPERATION_NAME,
    names.GEN_AI_PROVIDER_NAME,
    names.GEN_AI_REQUEST_MODEL,
)
_SHORT_TIMES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG_TIMES: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_TIMES: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


def _counter(name: str, description: str, *labels: str, unit: str = "{events}") -> Instrument:
    return Instrument(
        name=name,
        kind=InstrumentKind.COUNTER,
        unit=unit,
        description=description,
        labels=labels,
    )


def _gauge(name: str, description: str, *labels: str, unit: str = "{items}") -> Instrument:
    return Instrument(
        name=name, kind=InstrumentKind.GAUGE, unit=unit, description=description, labels=labels
    )


def _histogram(
    name: str, description: str, bounds: tuple[float, ...], *labels: str, unit: str = "s"
) -> Instrument:
    return Instrument(
        name=name,
        kind=InstrumentKind.HISTOGRAM,
        unit=unit,
        description=description,
        labels=labels,
        bounds=bounds,
    )


# By the conventions.
REQUEST_DURATION: Final = _histogram(
    "gen_ai.server.request.duration",
    "From the receipt of a request or turn to its end.",
    tuple(0.01 * 2**power for power in range(14)),
    *_GEN_AI,
    names.ERROR_TYPE,
)
TIME_TO_FIRST_TOKEN: Final = _histogram(
    "gen_ai.server.time_to_first_token",
    "From the receipt of a request or turn to its first token, for those that had one.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *_GEN_AI,
)
TIME_PER_OUTPUT_TOKEN: Final = _histogram(
    "gen_ai.server.time_per_output_token",
    "From one token to the next, on average over a request's longest output; one for a request.",
    _TOKEN_TIMES,
    *_GEN_AI,
)
CALL_DURATION: Final = _histogram(
    "rpc.server.call.duration",
    "From the begin of a call to its end.",
    (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    names.RPC_SYSTEM_NAME,
    names.RPC_METHOD,
    names.RPC_RESPONSE_STATUS_CODE,
)

# Requests and turns.
INTER_TOKEN_LATENCY: Final = _histogram(
    "antiphon.request.inter_token_latency",
    "From one token to the next, as its request's average; one for each but an output's first.",
    _TOKEN_TIMES,
    MODEL,
)
QUEUE_TIME: Final = _histogram(
    "antiphon.request.queue.duration", "From receipt to the first engine step.", _LONG_TIMES, MODEL
)
GRAMMAR_WAIT: Final = _histogram(
    "antiphon.request.grammar_wait.duration",
    "What a request of which something is asked waited in the engine for its grammar.",
    _LONG_TIMES,
    MODEL,
)
PREFILL_TIME: Final = _histogram(
    "antiphon.request.prefill.duration",
    "From the first engine step to the first token.",
    _LONG_TIMES,
    MODEL,
)
BATCH_SIZE: Final = _histogram(
    "antiphon.request.batch_size",
    "Rows of an engine step, on average over those that a request was in.",
    (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    MODEL,
    unit="{rows}",
)
REQUESTS: Final = _counter(
    "antiphon.requests",
    "Requests and turns that ended.",
    MODEL,
    "kind",
    "outcome",
    unit="{requests}",
)
REQUEST_FAILURES: Final = _counter(
    "antiphon.request.failures",
    "Requests and turns that failed, by the contract's reason.",
    "reason",
    unit="{requests}",
)
CALL_FAILURES: Final = _counter(
    "antiphon.call.failures",
    "Calls that failed, by the contract's reason.",
    "reason",
    unit="{calls}",
)
REQUEST_TOKENS: Final = _counter(
    "antiphon.request.tokens",
    "Tokens of requests that ended: of prompts, those of them that were reused, and of outputs.",
    MODEL,
    "type",
    unit="{tokens}",
)
TENANT_REQUESTS: Final = _counter(
    "antiphon.tenant.requests",
    "Requests and turns that ended, by tenant.",
    "tenant",
    unit="{requests}",
)
TENANT_TOKENS: Final = _counter(
    "antiphon.tenant.tokens",
    "Tokens of prompts and outputs of requests that ended, by tenant.",
    "tenant",
    "type",
    unit="{tokens}",
)
CONSTRAINT_CHECKS: Final = _counter(
    "antiphon.constraint.checks",
    "Checks of constraints that requests waited for, by what came of them.",
    "outcome",
    unit="{checks}",
)
CONSTRAINT_CHECK_TIME: Final = _histogram(
    "antiphon.constraint.check.duration",
    "What a request waited for a check: of its constraint, or of an output.",
    _SHORT_TIMES,
    "checked",
)
STORE_WRITE_TIME: Final = _histogram(
    "antiphon.store.write.duration",
    "What a turn's write took until it was durable.",
    _SHORT_TIMES,
    "write",
)

# The engine.
ENGINE_UP: Final = _gauge("antiphon.engine.up", "Whether the engine takes requests.", MODEL)
ENGINE_RESTARTS: Final = _counter(
    "antiphon.engine.restarts", "Starts of the engine's process after the first.", MODEL
)
ENGINE_RUNNING: Final = _gauge(
    "antiphon.engine.requests.running", "Outputs in the engine's last batch.", MODEL
)
ENGINE_WAITING: Final = _gauge(
    "antiphon.engine.requests.waiting", "Outputs that wait for their first step.", MODEL
)
ENGINE_PAUSED: Final = _gauge(
    "antiphon.engine.requests.paused", "Outputs that were paused to make room.", MODEL
)
ENGINE_HELD: Final = _gauge(
    "antiphon.engine.requests.held", "Outputs that rest since their readers are behind.", MODEL
)
ENGINE_GUIDES: Final = _gauge(
    "antiphon.constraint.guides",
    "Outputs that a constraint, tools or a budget of thinking guides.",
    MODEL,
)
KV_UTILIZATION: Final = _gauge(
    "antiphon.kv_cache.utilization",
    "The share of KV blocks that requests use now, from 0 to 1.",
    MODEL,
    unit="1",
)
KV_BLOCKS: Final = _gauge(
    "antiphon.kv_cache.blocks", "KV blocks on the device, by what they hold.", MODEL, "state"
)
KV_HOST_BLOCKS: Final = _gauge(
    "antiphon.kv_cache.host_blocks", "KV blocks in main memory.", MODEL, "state"
)
KV_INFO: Final = _gauge(
    "antiphon.kv_cache.info",
    "Always 1; the labels tell how many tokens a block has and how many blocks there are.",
    MODEL,
    "block_size",
    "num_gpu_blocks",
)
ENGINE_STEP_TIME: Final = _gauge(
    "antiphon.engine.step.time", "The last step's time.", MODEL, unit="s"
)
ENGINE_SCHEDULE_TIME: Final = _gauge(
    "antiphon.engine.schedule.time",
    "The last step's part in planning and committing.",
    MODEL,
    unit="s",
)
ENGINE_COUNTS: Final = {
    "step": _counter("antiphon.engine.steps", "Engine steps.", MODEL),
    "num_prefilled_tokens_total": _counter(
        "antiphon.engine.prefilled_tokens", "Prompt tokens computed.", MODEL
    ),
    "num_reused_tokens_total": _counter(
        "antiphon.engine.reused_tokens", "Prompt tokens whose KV cache was reused.", MODEL
    ),
    "num_recomputed_tokens_total": _counter(
        "antiphon.engine.recomputed_tokens", "Tokens computed once more after a pause.", MODEL
    ),
    "num_generated_tokens_total": _counter(
        "antiphon.engine.generated_tokens", "Output tokens.", MODEL
    ),
    "num_preemptions_total": _counter("antiphon.engine.preemptions", "Pauses.", MODEL),
    "num_evictions_total": _counter(
        "antiphon.kv_cache.evictions", "Blocks whose content was dropped to make room.", MODEL
    ),
    "num_offloads_total": _counter(
        "antiphon.kv_cache.offloads", "Blocks copied to main memory.", MODEL
    ),
    "num_onloads_total": _counter("antiphon.kv_cache.onloads", "Blocks copied back.", MODEL),
    "num_masks_total": _counter("antiphon.constraint.masks", "Masks of grammars made.", MODEL),
    "num_late_masks_total": _counter(
        "antiphon.constraint.late_masks", "Masks that their step did not wait for.", MODEL
    ),
}
"""By the field of the engine's counters. They begin again at 0 with the engine."""

# The front end.
SESSIONS: Final = _gauge("antiphon.sessions", "Sessions that are kept.")
TURNS: Final = _gauge("antiphon.turns", "Turns that have not ended, by what they do.", "state")
CALLS: Final = _gauge("antiphon.calls", "Calls that run.")
STREAMS: Final = _gauge("antiphon.streams", "Long-lived streams that are open.")
SERVING: Final = _gauge("antiphon.serving", "Whether a request sent now would be worked on.")
STORE_WRITABLE: Final = _gauge("antiphon.store.writable", "Whether the store can be written.")
CERTIFICATE_EXPIRY: Final = _gauge(
    "antiphon.tls.certificate.expiry",
    "When the server's certificate ends, in seconds since 1970; absent where there is none.",
    unit="s",
)
LOOP_LAG: Final = _histogram(
    "antiphon.event_loop.lag",
    "How late the event loop ran what was due, looked at twice a second.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
CONSTRAINT_VIOLATIONS: Final = _counter(
    "antiphon.constraint.violations",
    "Finished outputs that were not as they had to be: faults of the server.",
    MODEL,
)
CONSTRAINT_COMPILES: Final = _counter(
    "antiphon.constraint.compiles", "Constraints that the checker made a grammar of.", MODEL
)
CONSTRAINT_COMPILE_TIME: Final = _counter(
    "antiphon.constraint.compile.time", "What that took it.", MODEL, unit="s"
)
QUOTA_REFUSALS: Final = _counter(
    "antiphon.quota.refusals", "What tenants' quotas refused, by quota.", "quota"
)

# Telemetry itself.
SPANS_EXPORTED: Final = _counter(
    "antiphon.telemetry.spans.exported", "Spans that a collector took."
)
SPANS_DROPPED: Final = _counter(
    "antiphon.telemetry.spans.dropped", "Spans that were lost.", "cause"
)
FAILED_EXPORTS: Final = _counter(
    "antiphon.telemetry.failed_exports", "Exports that a collector did not take.", "signal"
)
LOG_LINES_DROPPED: Final = _counter(
    "antiphon.log.lines.dropped", "Lines that the log left out.", "cause"
)
INFO: Final = _gauge("antiphon.info", "Always 1; the label tells the release.", "version")
