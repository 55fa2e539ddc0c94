"""Every name that spans have, as of one version of OpenTelemetry's semantic conventions.

Those for generative AI are not stable yet, and move; so they stand here and are imported from
nowhere.
"""

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions."""
SCOPE: Final = "antiphon_server"
"""Who makes the spans."""

# Resources.
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"

# Calls.
RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
UNKNOWN_METHOD: Final = "_OTHER"
"""What stands for a method that is not served."""
RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"
CLIENT_ADDRESS: Final = "client.address"
CLIENT_PORT: Final = "client.port"
GRPC: Final = "grpc"
SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""The gRPC statuses that are errors of a server; the others are its callers'."""

# Requests to models.
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
PROVIDER: Final = "antiphon"
FINISH_REASONS: Final = {
    "STOP": "stop",
    "MAX_OUTPUT_TOKENS": "length",
    "TOOL_CALLS": "tool_calls",
}
"""Of the contract's ends, those that the conventions have; others keep their own name."""

# What other backends read where content is kept.
INPUT_VALUE: Final = "input.value"
OUTPUT_VALUE: Final = "output.value"

# The project's own.
APPEND: Final = "append"
QUEUE: Final = "queue"
QUEUE_GRAMMAR: Final = "queue.grammar"
PREFILL: Final = "prefill"
PREFILL_CHUNK: Final = "prefill.chunk"
DECODE: Final = "decode"
FIRST_TOKEN: Final = "first_token"
PAUSED: Final = "paused"
GOES_ON: Final = "resumed"
LINK_KIND: Final = "link.kind"
REQUEST_ID: Final = "antiphon.request.id"
REQUEST_KIND: Final = "antiphon.request.kind"
FAILURE_REASON: Final = "antiphon.failure_reason"
OUTCOME: Final = "antiphon.outcome"
KEPT_FOR: Final = "antiphon.kept_for"
TENANT: Final = "antiphon.tenant"
TURN: Final = "antiphon.turn"
EPOCH: Final = "antiphon.epoch"
RECOVERED: Final = "antiphon.recovered"
CONSTRAINT: Final = "antiphon.constraint"
TOOL_CALLS: Final = "antiphon.tool_calls"
TIME_TO_FIRST_TOKEN: Final = "antiphon.time_to_first_token"
MASK_WAITS: Final = "antiphon.mask_waits"
MASK_WAIT: Final = "antiphon.mask_wait"
STEPS: Final = "antiphon.steps"
PREEMPTIONS: Final = "antiphon.preemptions"
PROMPT_TOKENS: Final = "antiphon.prompt_tokens"
REUSED_TOKENS: Final = "antiphon.reused_tokens"
TOKENS: Final = "antiphon.tokens"
CHUNK_INDEX: Final = "antiphon.chunk.index"
CHUNKS: Final = "antiphon.chunks"
BATCH_SIZE: Final = "antiphon.batch_size"
MEAN_BATCH_SIZE: Final = "antiphon.batch_size.mean"
MAX_BATCH_SIZE: Final = "antiphon.batch_size.max"
FIRST_STEP: Final = "antiphon.step"
DEVICE_REUSED_TOKENS: Final = "antiphon.reused_tokens.device"
HOST_REUSED_TOKENS: Final = "antiphon.reused_tokens.host"
RECOMPUTED_TOKENS: Final = "antiphon.recomputed_tokens"
RESTS: Final = "antiphon.rests"
REST_REASON: Final = "antiphon.reason"
HELD: Final = "held"
PREEMPTED: Final = "preempted"
