"""Certificates: checked before they are used, and taken anew by running ports when they change."""

import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from antiphon_engine.api.errors import StartupError

MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where the parts of an encrypted port are."""

    cert: Path
    """The server's certificate and those between it and its authority."""
    key: Path
    client_ca: Path | None
    """The authorities whose clients are let in; None: clients need no certificate."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What a handshake needs. The key is never shown."""

    configuration: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext
    """The same for a port that is not gRPC's."""
    asks_clients: bool
    expiry_s: int
    """When the server's certificate ends, in seconds since 1970."""


def load_certificates(files: TlsFiles) -> Certificates:
    """Reads and checks the files.

    Raises:
        StartupError: a file is missing or no PEM, the key is another certificate's, or the
            certificate's time is over; names setting and file.
    """
    cert, key = _read(files.cert, "server.tls_cert"), _read(files.key, "server.tls_key")
    client_ca = None
    if files.client_ca is not None:
        client_ca = _read(files.client_ca, "server.tls_client_ca")
        _check_authorities(client_ca, files.client_ca)
    context = _served_by(files)
    expiry_s = _in_force_until(cert, files, served=context)
    if client_ca is not None:
        context.load_verify_locations(cadata=client_ca.decode("ascii", errors="replace"))
        context.verify_mode = ssl.CERT_REQUIRED
    return Certificates(
        configuration=grpc.ssl_server_certificate_configuration([(key, cert)], client_ca),
        context=context,
        asks_clients=client_ca is not None,
        expiry_s=expiry_s,
    )


def port_credentials(current: Callable[[], Certificates]) -> grpc.ServerCredentials:
    """Returns the credentials of one port, which takes the current certificates at handshakes."""
    given = current()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Is called by the transport's threads; None: as before."""
        nonlocal given
        latest = current()
        if latest is given:
            return None
        given = latest
        return latest.configuration

    return grpc.dynamic_ssl_server_credentials(
        given.configuration,
        fetch,  # type: ignore[arg-type]  # None is documented, and not in the stub.
        given.asks_clients,
    )


def port_context(current: Callable[[], Certificates]) -> ssl.SSLContext:
    """Returns what encrypts a port that is not gRPC's, with the current certificates as well."""
    context = current().context

    def take_current(shaking: ssl.SSLObject, name: str | None, before: ssl.SSLContext) -> None:
        """Is called in each handshake, whether or not the client names a host."""
        del name, before
        shaking.context = current().context

    context.sni_callback = take_current
    return context


def _read(path: Path, key: str) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StartupError(f"{key}: {path} has more than {MAX_FILE_BYTES} bytes, the limit")
        return path.read_bytes()
    except OSError as error:
        raise StartupError(f"{key}: {path} can't be read: {error.strerror}") from error


def _served_by(files: TlsFiles) -> ssl.SSLContext:
    """Returns a server's context with the certificate and its key, which must belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without the password function a key with a password would be asked for at the terminal.
        context.load_cert_chain(files.cert, files.key, password=_refuse_password)
    except _PasswordNeededError:
        raise StartupError(
            f"server.tls_key: {files.key} has a password; give a key without one"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise StartupError(
                f"server.tls_key: {files.key} is not the key of the certificate {files.cert}"
                " (server.tls_cert)"
            ) from None
        raise StartupError(
            f"server.tls_cert, server.tls_key: {files.cert} and {files.key} are no certificate and"
            f" key in PEM: {error.reason or 'not readable'}"
        ) from None
    return context


def _check_authorities(data: bytes, path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLError, ValueError):
        context.load_verify_locations(cadata=data.decode("ascii", errors="replace"))
    if not context.cert_store_stats()["x509"]:
        raise StartupError(f"server.tls_client_ca: {path} has no certificate in PEM")


def _in_force_until(cert: bytes, files: TlsFiles, *, served: ssl.SSLContext) -> int:
    """Shakes hands with itself, trusting nobody else, so that only the times can be wrong.

    Returns when the certificate ends, in seconds since 1970.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=cert.decode("ascii", errors="replace"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server),
        served.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(3):  # Hello, answer, and the end of the client's part.
            for side in sides:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise StartupError(
            f"server.tls_cert: {files.cert} can't be used: {error.verify_message}"
        ) from None
    shown = sides[0].getpeercert()
    assert shown is not None
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


class _PasswordNeededError(Exception):
    """A private key can't be read without a password."""


def _refuse_password() -> bytes:
    raise _PasswordNeededError
