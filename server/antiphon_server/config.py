"""The server's settings: one tree of frozen dataclasses.

The string under each field is its help text. `settings.load_config` fills the tree and checks it;
nothing else reads files or the environment.
"""

from dataclasses import dataclass, field

from antiphon_engine.api.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What is served."""

    source: str = "demo"
    """A checkpoint directory, a GGUF file, a hub id, or demo, the default model."""
    name: str = ""
    """What follows `models/` in the model's name; empty: from the source."""
    chat_template: str = ""
    """A file with a chat template in place of the checkpoint's; empty: the checkpoint's."""
    cache_dir: str = ""
    """Where downloaded and converted models are kept; empty: the user's cache folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Ports and transport."""

    listen: str = "127.0.0.1:50051"
    """Where clients connect: HOST:PORT, [::]:PORT or unix:PATH."""
    admin_listen: str = "127.0.0.1:50052"
    """Where those who run the server connect."""
    insecure: bool = False
    """Allows to listen beyond this machine without encryption or without asking for credentials."""
    tls_cert: str = ""
    """The server's certificate chain in PEM, of both ports; empty: ports are not encrypted."""
    tls_key: str = ""
    """The certificate's key in PEM, without a password."""
    tls_client_ca: str = ""
    """Authorities in PEM: clients must have a certificate of theirs; empty: clients need none."""
    tokens_file: str = ""
    """The TOML file of tokens and tenants; empty: nobody is asked, and all are one tenant."""
    secret_file: str = ""
    """What keeps tenants' caches apart, 16 bytes or more; empty: drawn, kept beside the store."""
    socket_mode: str = "0600"
    """Who may use unix: sockets, as the octal mode of their files."""
    max_message_bytes: int = 16 << 20
    """The largest message taken in."""
    max_connections: int = 1024
    """Connections to a port at a time; further ones are closed."""
    max_streams: int = 1024
    """Calls of a connection at a time; further ones wait in the client."""
    keepalive_interval_s: float = 30.0
    """How often a silent client is pinged."""
    keepalive_timeout_s: float = 10.0
    """How long a ping may stay unanswered before the connection counts as dead."""
    min_ping_interval_s: float = 10.0
    """How often clients may ping, also without calls."""
    max_connection_age_s: float = 0.0
    """From this age on a connection takes no new calls, and its streams are sent away; 0: never."""
    max_connection_age_grace_s: float = 30.0
    """How long a stream that was sent away for its age may stay before it is cut off."""
    drain_limit_s: float = 30.0
    """How long the server may take to stop; what runs in the end is left to the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where sessions are kept."""

    path: str = ""
    """The SQLite file; empty: antiphon/sessions.db in the user's state folder."""
    synchronous: str = "full"
    """full: what was told survives a power cut; normal: it survives a crash of the server."""
    max_bytes: int = 0
    """The most that the file may take, beside what is being written; 0: what the disk has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsConfig:
    """How sessions are held."""

    idle_ttl_s: float = 7 * 86400.0
    """A session is deleted this long after its last turn, where it sets no idle_ttl of its own."""
    max_sessions: int = 10_000
    """The most sessions of a tenant."""
    max_queued_turns: int = 16
    """The most turns that wait in a session, beside the one that runs."""
    retention_s: float = 3600.0
    """An idle session keeps its cache's priority this long, where it sets no duration itself."""
    max_loaded: int = 1024
    """The most idle sessions kept in memory; others are read again when they are needed."""
    max_watchers: int = 16
    """The most streams that watch a session, beside the one that drives it."""
    reconnect_grace_s: float = 2.0
    """How long a turn that is to end with its stream waits for its caller to come again."""
    log_grace_s: float = 60.0
    """How long the events of a turn that ended are kept once its caller has taken them in."""
    max_ended_log_bytes: int = 64 << 20
    """What the events of turns that ended may take in memory; the oldest ones go first."""
    recovery_wait_s: float = 60.0
    """How long turns wait for the engine to be there again before they fail."""
    checkpoint_tokens: int = 64
    """After so many new tokens of a running turn, what there is of it is kept durably."""
    checkpoint_interval_s: float = 1.0
    """New tokens of a running turn are kept after this long at the latest."""
    max_attempts: int = 5
    """A turn fails once the server or its engine has ended so often before the turn got on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """What requests may ask."""

    max_outputs: int = 16
    """The most outputs of a request."""
    max_queued_requests: int = 256
    """The most requests that wait for the engine; further ones are refused, to be tried again."""
    max_multiplexed_requests: int = 256
    """The most requests of one MultiplexGenerate that run at a time; further ones wait in it."""
    max_undelivered_bytes: int = 1 << 20
    """What may wait for a slow reader of a stream before its requests are held."""
    slow_reader_grace_s: float = 30.0
    """How long a reader whose requests are held may take nothing before it loses its stream."""
    offload_threads: int = 2
    """Threads for text work: rendering, encoding, large answers."""
    max_offloaded_jobs: int = 1024
    """The most pieces of text work that wait; further requests are refused, to be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintsConfig:
    """What outputs may be asked to look like. A process of its own checks constraints."""

    max_size_bytes: int = 256 << 10
    """The longest text of a constraint, or of all its choices."""
    max_choices: int = 4096
    """The most choices of a constraint."""
    max_depth: int = 64
    """How deeply the parts of a constraint may be nested."""
    max_grammar_bytes: int = 1 << 20
    """The longest grammar that may become of a constraint."""
    max_blank_characters: int = 16
    """White space in a row that JSON outputs may have, where the caller doesn't forbid all."""
    check_limit_s: float = 2.0
    """The processor time that the check of a constraint may take."""
    check_memory_bytes: int = 512 << 20
    """The memory that the check of a constraint may take."""
    check_workers: int = 2
    """Constraints that are checked at a time."""
    max_queued_checks: int = 64
    """The most constraints that wait for their check; further requests are refused for now."""
    load_at_start: bool = True
    """Whether the processes that check constraints load with the server, the one for EBNF behind
    the other; else each at its first use, which waits for it."""
    cache_bytes: int = 16 << 20
    """What checked constraints may take in memory; those not used for longest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasConfig:
    """What a tenant may use, where the tokens file says nothing else for it; 0: no limit."""

    max_stored_bytes: int = 0
    """What its sessions take up in the store; beyond it no turn and no session is taken in."""
    max_queued_turns: int = 0
    """Turns that wait behind another of their session, over all its sessions."""
    max_concurrent_requests: int = 0
    """Requests and turns that were let in and have not ended."""
    requests_per_minute: int = 0
    """Requests and turns let in; as many may come at once as in a minute."""
    tokens_per_minute: int = 0
    """Tokens of prompts and outputs; an output counts as long as it may become until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """The server's own log, on standard error. What users say is never in it."""

    level: str = "info"
    """The least level logged: debug, info, warning or error."""
    format: str = "console"
    """console: for people, and at a terminal requests that went well in short; json: one object a
    line."""
    requests: bool = True
    """Whether each request and each turn has a line, at info, when it ends."""
    max_repeats_per_minute: int = 60
    """Failures and warnings that say the same; of further ones a line tells how many there were.
    Refusals while the engine is away have one, since clients that wait come every few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """What is told of the server: to a collector, and to Prometheus. Nothing where none is named.

    Where a setting is not made, the OTEL_ variable of the same meaning holds.
    """

    enabled: bool = True
    """false: nothing is traced and nothing measured, whatever else is set."""
    service_name: str = "antiphon"
    """As what the server shows there."""
    otlp_endpoint: str = ""
    """The collector, by OTLP over gRPC: http://HOST:PORT, or https for TLS; empty: none."""
    traces: bool = True
    """Whether traces go to a collector, where one is named."""
    traces_endpoint: str = ""
    """Where traces go in place of otlp_endpoint."""
    metrics: bool = True
    """Whether metrics go to a collector, where one is named."""
    metrics_endpoint: str = ""
    """Where metrics go in place of otlp_endpoint."""
    metrics_interval_s: float = 60.0
    """How often they go there."""
    prometheus_listen: str = ""
    """Where Prometheus reads metrics over HTTP, such as 127.0.0.1:9464; empty: nowhere. Whoever may
    use the admin port may read them."""
    sampler: str = "parentbased_traceidratio"
    """Which traces are kept, by the names that OTEL_TRACES_SAMPLER takes."""
    sample_ratio: float = 1.0
    """Of the traces that begin here, the share that is kept, where the sampler goes by ratio."""
    slow_first_token_s: float = 5.0
    """Requests that wait longer for their first token are kept in any case, like those that fail;
    0: none is slow."""
    capture_content: bool = False
    """Whether what users and models say is put into spans."""
    max_content_bytes: int = 8 << 10
    """How much of an input, and of an output, is put there."""
    max_waiting_records: int = 4096
    """Ended calls and requests that wait for the collector; further ones are dropped, counted."""
    flush_limit_s: float = 3.0
    """How long the collector may hold up the server's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings."""

    model: ModelConfig = field(default_factory=ModelConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    sessions: SessionsConfig = field(default_factory=SessionsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    constraints: ConstraintsConfig = field(default_factory=ConstraintsConfig)
    quotas: QuotasConfig = field(default_factory=QuotasConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
