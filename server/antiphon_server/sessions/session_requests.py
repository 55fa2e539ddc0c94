"""What callers ask of sessions as wholes: read and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from antiphon.v1.session_pb2 import (
    CreateSessionRequest,
    ForkSessionRequest,
    HistoryPolicy,
    Retention,
    RewindSessionRequest,
    Session,
    UpdateSessionRequest,
)
from google.protobuf.field_mask_pb2 import FieldMask

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.served_model import ServedModel
from antiphon_server.sessions.names import (
    check_request_id,
    check_session_id,
    parse_session_name,
    parse_turn_name,
)
from antiphon_server.sessions.turn_request import check_point
from antiphon_server.times import check_duration, check_future
from antiphon_server.tool_results import NO_CALLS, calls_open_behind
from antiphon_server.validation import check_config, check_items, check_items_offered, check_tools
from antiphon_server.validation_fields import Range, Violations, join_path

MAX_LABELS: Final = 64
MAX_LABEL_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Checks a session's values, wherever they come from."""

    model: ServedModel
    now_ns: int

    def check(self, session: Session, path: str) -> None:
        """Checks all values that a caller may set.

        Raises:
            InvalidRequest: a field is at fault.
            AntiphonError: UNSUPPORTED_FEATURE.
        """
        check_tools(session.tools, f"{path}.tools", model=self.model)
        check_config(session.defaults, model=self.model, path=f"{path}.defaults")
        if session.HasField("retention"):
            check_retention(session.retention, f"{path}.retention")
        check_labels(session.labels, f"{path}.labels")
        if session.HasField("idle_ttl"):
            check_duration(session.idle_ttl, f"{path}.idle_ttl")
        if session.HasField("latest_expire_time"):
            check_future(session.latest_expire_time, self.now_ns, f"{path}.latest_expire_time")


def check_create(request: CreateSessionRequest, checker: Checker, *, path: str) -> None:
    """Checks a new session. Raises like `Checker.check`; also NO_CHAT_TEMPLATE."""
    if request.session_id:
        check_session_id(request.session_id, join_path(path, "session_id"))
    check_request_id(request.request_id, join_path(path, "request_id"))
    policy = request.session.history_policy
    if policy not in HistoryPolicy.values():
        raise InvalidRequest(
            FieldViolation(
                join_path(path, "session.history_policy"),
                f"is {policy}, which this server does not know",
            )
        )
    checker.check(request.session, join_path(path, "session"))
    items_path = join_path(path, "items")
    check_items(request.items, items_path)
    check_items_offered(request.items, checker.model.capabilities, items_path)
    calls_open_behind(NO_CALLS, request.items, items_path)
    if not checker.model.capabilities.chat:
        raise AntiphonError(
            ErrorReason.NO_CHAT_TEMPLATE,
            f"{checker.model.name} has no chat template, which sessions need. Start the server with"
            " model.chat_template, or use InferenceService with a text prompt.",
            metadata={"model": checker.model.name},
        )


def check_retention(retention: Retention, path: str) -> None:
    """Checks how hard to hold on to a cache. Raises InvalidRequest."""
    violations = Violations()
    violations.check_range(f"{path}.priority", retention.priority, Range(0, 100))
    violations.raise_if_any()
    if retention.HasField("duration"):
        check_duration(retention.duration, f"{path}.duration")


def check_fork(request: ForkSessionRequest) -> None:
    """Checks a fork's fields, not what they name. Raises InvalidRequest."""
    check_request_id(request.request_id, "request_id")
    if request.session_id:
        check_session_id(request.session_id, "session_id")
    parse_session_name("", request.name, "name")
    if request.turn:
        parse_turn_name("", request.turn, "turn")


def check_rewind(request: RewindSessionRequest) -> None:
    """Checks a rewind's fields, not what they name. Raises InvalidRequest."""
    check_request_id(request.request_id, "request_id")
    parse_session_name("", request.name, "name")
    check_point(request.to, "to")


def settable(session: Session) -> Session:
    """Returns what a caller may set of a session; the rest is the server's."""
    kept = Session(
        instructions=session.instructions,
        tools=session.tools,
        history_policy=session.history_policy or HistoryPolicy.HISTORY_POLICY_KEEP_TOKENS,
        labels=session.labels,
    )
    for name in ("defaults", "retention", "idle_ttl", "latest_expire_time"):
        if session.HasField(name):
            getattr(kept, name).CopyFrom(getattr(session, name))
    return kept


_UPDATABLE: Final = (
    "instructions",
    "tools",
    "defaults",
    "retention",
    "labels",
    "idle_ttl",
    "latest_expire_time",
)


def read_update(request: UpdateSessionRequest, checker: Checker) -> Callable[[Session], None]:
    """Returns a function that makes the asked changes to a session.

    Raises:
        InvalidRequest: the mask or a value is at fault.
        AntiphonError: UNSUPPORTED_FEATURE.
    """
    check_request_id(request.request_id, "request_id")
    paths = list(request.update_mask.paths)
    if not paths:
        raise InvalidRequest(
            FieldViolation("update_mask", f"must name one of {', '.join(_UPDATABLE)}")
        )
    if len(paths) > len(_UPDATABLE):
        raise InvalidRequest(
            FieldViolation(
                "update_mask", f"must name at most {len(_UPDATABLE)}; names {len(paths)}"
            )
        )
    for index, path in enumerate(paths):
        if path not in _UPDATABLE:
            raise InvalidRequest(
                FieldViolation(
                    f"update_mask.paths[{index}]",
                    f"is {path[:64]!r}; must be one of {', '.join(_UPDATABLE)}",
                )
            )
    named = Session()
    for path in paths:
        _copy_field(path, source=request.session, target=named)
    checker.check(named, "session")

    def change(session: Session) -> None:
        for path in paths:
            _copy_field(path, source=named, target=session)

    return change


def _copy_field(name: str, *, source: Session, target: Session) -> None:
    """Makes a field in one session what it is in another, also unset."""
    FieldMask(paths=[name]).MergeMessage(
        source, target, replace_message_field=True, replace_repeated_field=True
    )


def check_labels(labels: Mapping[str, str], path: str) -> None:
    """Checks labels, or a filter by them. Raises InvalidRequest."""
    if len(labels) > MAX_LABELS:
        raise InvalidRequest(
            FieldViolation(path, f"must be at most {MAX_LABELS}; are {len(labels)}")
        )
    for key, value in labels.items():
        for what, text in (("key", key), ("value", value)):
            num_bytes = len(text.encode())
            if num_bytes > MAX_LABEL_BYTES:
                raise InvalidRequest(
                    FieldViolation(
                        f"{path}[{key[:64]!r}]",
                        f"its {what} must be at most {MAX_LABEL_BYTES} bytes; has {num_bytes}",
                    )
                )
