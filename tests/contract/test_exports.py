"""What the client's users import: a name that goes breaks them."""

import antiphon_client

EXPORTED = {
    "Aborted",
    "AdminClient",
    "AlreadyExists",
    "Cancelled",
    "Client",
    "ClientOptions",
    "DeadlineExceeded",
    "ErrorDetails",
    "FailedPrecondition",
    "FieldViolation",
    "GenerationStream",
    "InternalError",
    "InvalidArgument",
    "NotFound",
    "NotReachable",
    "ResourceExhausted",
    "RetryPolicy",
    "ServerError",
    "Session",
    "SessionCalls",
    "SyncClient",
    "SyncGeneration",
    "SyncSession",
    "SyncTurn",
    "Turn",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "assistant",
    "conversation",
    "raw_text",
    "raw_tokens",
    "system",
    "user",
}


def test_the_client_exports_these_names_and_no_others():
    assert set(antiphon_client.__all__) == EXPORTED
    assert all(hasattr(antiphon_client, name) for name in EXPORTED)
