"""All that decides who comes in, put together from the settings."""

import asyncio
import contextlib
import dataclasses
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import grpc

from antiphon_server.access.authentication import Authenticate, CredentialCheck, let_anyone_in
from antiphon_server.access.cache_scopes import CacheScopes, load_secret
from antiphon_server.access.credentials import Credentials, TenantSettings, load_credentials
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.access.quotas import TenantQuotas
from antiphon_server.access.reloading import ReloadedFiles, keep_reloading
from antiphon_server.access.tenancy import Tenancy
from antiphon_server.access.tls import (
    Certificates,
    TlsFiles,
    load_certificates,
    port_context,
    port_credentials,
)
from antiphon_server.config import Config, ServerConfig


class Entrance:
    """Certificates, credentials and the server's secret. Lives on one event loop."""

    def __init__(self, config: Config, *, now: Callable[[], datetime]) -> None:
        """Reads all files that are there.

        Args:
            config: The settings in force.
            now: The wall clock, in UTC.

        Raises:
            StartupError: a file is missing or has a mistake.
        """
        self._now = now
        self._certificates = _certificates(config.server)
        self._credentials = _credentials(config.server)
        self._reloading: asyncio.Task[None] | None = None
        named = config.server.secret_file
        self._secret_path = Path(named or f"{config.store.path}.secret")
        self._may_draw_secret = not named
        if named or self._secret_path.exists():
            load_secret(self._secret_path, may_make=False)  # What is wrong with it is told first.
        self._limits = QuotaLimits(
            max_sessions=config.sessions.max_sessions, **dataclasses.asdict(config.quotas)
        )

    def new_tenancy(self) -> Tenancy:
        """Returns what keeps tenants apart. Blocks.

        Draws the server's secret where none is named or there: call it once the session store is
        open, so that a start which is refused leaves no secret behind.

        Raises:
            StartupError: the secret can't be read or made.
        """
        secret = load_secret(self._secret_path, may_make=self._may_draw_secret)
        return Tenancy(
            scopes=CacheScopes(secret, self._tenants),
            quotas=TenantQuotas(self._limits_of, clock_ns=time.monotonic_ns),
        )

    def port_credentials(self) -> grpc.ServerCredentials | None:
        """Returns what encrypts a port; None: it is not encrypted. Each port has its own."""
        certificates = self._certificates
        return port_credentials(lambda: certificates.value) if certificates else None

    def port_context(self) -> ssl.SSLContext | None:
        """The same for a port that is not gRPC's."""
        certificates = self._certificates
        return port_context(lambda: certificates.value) if certificates else None

    @property
    def certificate_expiry_s(self) -> int | None:
        """When the certificate ends, in seconds since 1970; None: there is none."""
        return self._certificates.value.expiry_s if self._certificates else None

    def check(self, *, needs_admin: bool) -> Authenticate:
        """Returns what tells who makes a call.

        Args:
            needs_admin: Whether only credentials are taken that open the admin port.
        """
        credentials = self._credentials
        if credentials is None:
            return let_anyone_in
        return CredentialCheck(lambda: credentials.value, needs_admin=needs_admin, now=self._now)

    def keep_up(self) -> None:
        """Begins to follow changes of the files."""
        files = (self._certificates, self._credentials)
        looks = [each.reload_if_changed for each in files if each is not None]
        if looks:
            self._reloading = asyncio.create_task(keep_reloading(looks))

    async def close(self) -> None:
        """Stops following them. Idempotent."""
        reloading, self._reloading = self._reloading, None
        if reloading is not None:
            reloading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reloading

    def _tenants(self) -> Mapping[str, TenantSettings]:
        return self._credentials.value.tenants if self._credentials else {}

    def _limits_of(self, tenant: str) -> QuotaLimits:
        settings = self._tenants().get(tenant)
        return self._limits.overridden(settings.quotas) if settings else self._limits


def _certificates(config: ServerConfig) -> ReloadedFiles[Certificates] | None:
    if not config.tls_cert:
        return None
    client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
    files = TlsFiles(cert=Path(config.tls_cert), key=Path(config.tls_key), client_ca=client_ca)
    return ReloadedFiles(files.paths, lambda: load_certificates(files), what="certificates")


def _credentials(config: ServerConfig) -> ReloadedFiles[Credentials] | None:
    if not config.tokens_file:
        return None
    path = Path(config.tokens_file)
    return ReloadedFiles(
        [path], lambda: load_credentials(path, key="server.tokens_file"), what="tokens file"
    )
