"""What the client's users import: a name that goes breaks them."""

import antiphon_client

EXPORTED = {
    "Aborted",
    "AdminClient",
    "AlreadyExists",
    "Archive",
    "ArchiveError",
    "BadCredential",
    "Cancelled",
    "Client",
    "ClientOptions",
    "ConstraintTooComplex",
    "ConstraintViolated",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Draining",
    "EngineDown",
    "ErrorDetails",
    "FailedPrecondition",
    "FieldViolation",
    "GenerationStream",
    "IdTaken",
    "InternalError",
    "InternalFault",
    "InvalidArgument",
    "InvalidField",
    "ModelNotFound",
    "NeverFits",
    "NoChatTemplate",
    "NotFound",
    "NotReachable",
    "Overloaded",
    "QuotaExceeded",
    "ResourceExhausted",
    "ResponseTooLarge",
    "RetryPolicy",
    "ServerError",
    "Session",
    "SessionAttached",
    "SessionBusy",
    "SessionCalls",
    "SessionExpired",
    "SessionFull",
    "SessionNotFound",
    "SessionWatch",
    "SharedCall",
    "SlowConsumer",
    "StaleHead",
    "StoreUnavailable",
    "SyncClient",
    "SyncGeneration",
    "SyncSession",
    "SyncSessionCalls",
    "SyncSessionWatch",
    "SyncSharedCall",
    "SyncTurn",
    "TakenOver",
    "TemplateError",
    "TimedOut",
    "TlsOptions",
    "ToolResultsMissing",
    "Turn",
    "TurnNotFound",
    "TurnRestarted",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UnsupportedConstraint",
    "UnsupportedFeature",
    "after",
    "answer_calls",
    "answer_calls_async",
    "arguments_of",
    "assistant",
    "before",
    "beginning",
    "choice",
    "conversation",
    "generate_request",
    "grammar",
    "json_object",
    "json_schema",
    "raw_text",
    "raw_tokens",
    "regex",
    "structural_tag",
    "system",
    "tool",
    "tool_result",
    "unconstrained",
    "user",
}


def test_the_client_exports_these_names_and_no_others():
    assert set(antiphon_client.__all__) == EXPORTED
    assert all(hasattr(antiphon_client, name) for name in EXPORTED)


def test_the_blocking_client_has_all_that_the_other_has():
    pairs = [
        (antiphon_client.Client, antiphon_client.SyncClient),
        (antiphon_client.Session, antiphon_client.SyncSession),
        (antiphon_client.SessionCalls, antiphon_client.SyncSessionCalls),
        (antiphon_client.SessionWatch, antiphon_client.SyncSessionWatch),
        (antiphon_client.SharedCall, antiphon_client.SyncSharedCall),
        (antiphon_client.Turn, antiphon_client.SyncTurn),
        (antiphon_client.GenerationStream, antiphon_client.SyncGeneration),
    ]
    missing = {
        f"{blocking.__name__}.{name}"
        for other, blocking in pairs
        for name in vars(other)
        if not name.startswith("_") and not hasattr(blocking, name)
    }

    assert not missing
