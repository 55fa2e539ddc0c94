"""From what a call brings along to who makes it."""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.access.credentials import DIGEST_START_BYTES, Credentials, Identity
from antiphon_server.caller import Caller

_METADATA_KEY: Final = "authorization"
_SCHEME: Final = "bearer "
_MAX_TOKEN_CHARS: Final = 1024
_CERTIFICATE_NAMES: Final = ("x509_common_name", "x509_subject_alternative_name")


class CallFacts(Protocol):
    """What of a call's context tells who makes it."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """What the caller sent along."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the transport found out."""


Metadata = Iterable[tuple[str, str | bytes]]


class Authenticate(Protocol):
    """Tells who makes a call."""

    def __call__(self, call: CallFacts) -> Caller:
        """Returns who it is; raises AntiphonError, BAD_CREDENTIAL."""

    def refuses(self, metadata: Metadata | None) -> bool:
        """Whether nobody who sends this along is let in, so that no message need be read."""


class OpenDoor:
    """Takes every caller for the one tenant of a server that asks for no credentials."""

    def __call__(self, call: CallFacts) -> Caller:
        """See Authenticate."""
        del call
        return Caller(tenant="")

    def refuses(self, metadata: Metadata | None) -> bool:
        """See Authenticate."""
        del metadata
        return False


let_anyone_in: Final = OpenDoor()


class CredentialCheck:
    """Lets in who brings a token, or a certificate, that the tokens file knows."""

    def __init__(
        self,
        credentials: Callable[[], Credentials],
        *,
        needs_admin: bool,
        now: Callable[[], datetime],
    ) -> None:
        """Sets what it goes by.

        Args:
            credentials: Returns the ones in force.
            needs_admin: Whether only those are let in that open the admin port.
            now: The wall clock, in UTC.
        """
        self._credentials = credentials
        self._needs_admin = needs_admin
        self._now = now

    def __call__(self, call: CallFacts) -> Caller:
        """Returns who makes a call. A token goes before a certificate.

        Raises:
            AntiphonError: BAD_CREDENTIAL; it never says what is wrong with which.
        """
        token = _token_of(call.invocation_metadata())
        identity = self._by_certificate(call) if token is None else self._by_token(token)
        if identity is None or not self._holds(identity):
            raise bad_credential()
        return Caller(tenant=identity.tenant)

    def refuses(self, metadata: Metadata | None) -> bool:
        """See Authenticate."""
        token = _token_of(metadata)
        if token is None:
            return not self._credentials().by_certificate
        identity = self._by_token(token)
        return identity is None or not self._holds(identity)

    def _holds(self, identity: Identity) -> bool:
        if self._needs_admin and not identity.admin:
            return False
        return identity.expire_time is None or identity.expire_time > self._now()

    def _by_token(self, token: str) -> Identity | None:
        if not 0 < len(token) <= _MAX_TOKEN_CHARS:
            return None
        digest = hashlib.sha256(token.encode("utf-8", errors="replace")).digest()
        # The look-up's time depends on digests, which nobody can steer without the token itself.
        known = self._credentials().by_digest_start.get(digest[:DIGEST_START_BYTES])
        if known is None or not hmac.compare_digest(known.digest, digest):
            return None
        return known.identity

    def _by_certificate(self, call: CallFacts) -> Identity | None:
        by_certificate = self._credentials().by_certificate
        facts = call.auth_context() if by_certificate else {}
        for kind in _CERTIFICATE_NAMES:
            for name in facts.get(kind, ()):
                identity = by_certificate.get(name.decode("utf-8", errors="replace"))
                if identity is not None:
                    return identity
        return None


def _token_of(metadata: Metadata | None) -> str | None:
    """Returns the token that a call brings; empty: what it brings is none; None: nothing."""
    found = [value for key, value in metadata or () if key == _METADATA_KEY]
    if not found:
        return None
    (value, *others) = found
    if others or not isinstance(value, str) or value[: len(_SCHEME)].lower() != _SCHEME:
        return ""
    return value[len(_SCHEME) :].strip()


def bad_credential() -> AntiphonError:
    """Returns the one error for every credential that is not taken."""
    return AntiphonError(
        ErrorReason.BAD_CREDENTIAL,
        "The call has no credential that this server takes; send the metadata"
        " 'authorization: Bearer TOKEN', or a client certificate that it knows.",
    )
