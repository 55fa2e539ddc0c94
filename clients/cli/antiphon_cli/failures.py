"""What a server's failures look like to the person who asked."""

from typing import Final

from grpc import StatusCode

from antiphon_cli.outcome import FAILED, NOT_REACHABLE, complain
from antiphon_client import BadCredential, NotReachable, ServerError, SessionAttached

_MISTRUST: Final = ("handshake", "ssl", "certificate", "verification")
_CLIENTS_PORT: Final = "for clients"
_HUNG_UP: Final = "socket closed"
_AGAIN: Final = "try again"
_AGAIN_IN: Final = "try again in"


def explain(error: ServerError, target: str, *, port: str = _CLIENTS_PORT) -> str:
    """Returns one line for the person who asked: what happened and what to do.

    Args:
        error: What happened.
        target: Who was asked.
        port: Whom the port is for that should have been asked.
    """
    if isinstance(error, NotReachable):
        text = error.message.lower()
        if any(word in text for word in _MISTRUST):
            return (
                f"what answers at {target} can't be trusted, or is not encrypted; see --tls, --ca"
                f" and --cert ({' '.join(error.message.split())})"
            )
        if _HUNG_UP in text:
            return (
                f"what listens at {target} closed the connection; where it is encrypted or asks"
                " for a certificate, see --tls, --ca and --cert"
            )
        return (
            f"no server answers at {target}; start one with `antiphon serve`, "
            "or name another with --target"
        )
    text = " ".join(error.message.split()) or error.code.name
    if isinstance(error, BadCredential):
        token = "a token" if port == _CLIENTS_PORT else "an admin's token"
        text = f"{text.rstrip('.')}; name {token} with --token-file"
    if isinstance(error, SessionAttached):
        text = f"{text.rstrip('.')}; leave it to the other, or take it with --take-over"
    if error.code is StatusCode.UNIMPLEMENTED and not error.reason:
        text = (
            f"what answers at {target} doesn't know this call; "
            f"name the port {port} of an Antiphon server with --target"
        )
    if error.retry_delay_s and _AGAIN_IN not in text:
        when = f"{_AGAIN_IN} {error.retry_delay_s:.1f} s"
        text = f"{text.rstrip('.').removesuffix(_AGAIN).rstrip(' ;')}; {when}"
    return f"{text.rstrip('.')} ({error.reason})" if error.reason else text


def report(error: ServerError, target: str, *, port: str = _CLIENTS_PORT) -> int:
    """Complains about `error` and returns the exit status that goes with it."""
    complain(explain(error, target, port=port))
    return NOT_REACHABLE if isinstance(error, NotReachable) else FAILED
