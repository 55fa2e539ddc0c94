"""Whose cached prefixes a request may use: a scope that only the server can name."""

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.messages import Scope
from antiphon_server.access.credentials import TenantSettings

SECRET_BYTES: Final = 32
_MIN_SECRET_BYTES: Final = 16
_MAX_SECRET_BYTES: Final = 4096


class CacheScopes:
    """Turns tenants into scopes of the prefix cache.

    What a caller may choose, `cache_scope`, only divides its own tenant's scope further. Without
    the server's secret nobody can name another tenant's scope, on any tier that blocks may reach.
    """

    def __init__(self, secret: bytes, tenants: Callable[[], Mapping[str, TenantSettings]]) -> None:
        """Sets the secret, and what returns the settings of tenants in force."""
        self._secret = secret
        self._tenants = tenants

    def engine_scope(self, scope: Scope) -> Scope:
        """Returns the scope in which the engine shares, for one that names the tenant."""
        settings = self._tenants().get(scope.tenant)
        group = settings.cache_group if settings else ""
        kind, name = ("group", group) if group else ("tenant", scope.tenant)
        digest = hmac.new(self._secret, f"{kind}\0{name}".encode(), hashlib.sha256)
        return Scope(tenant=digest.hexdigest(), cache_scope=scope.cache_scope)


def load_secret(path: Path, *, may_make: bool) -> bytes:
    """Reads the server's secret.

    Args:
        path: The file.
        may_make: Whether one is drawn and kept there, for its owner alone, where none is.

    Raises:
        StartupError: it can't be read or made, or is too short; names the file.
    """
    if may_make and not path.exists():
        _make_secret(path)
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise StartupError(f"server.secret_file: {path} can't be read: {error.strerror}") from error
    if not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
        raise StartupError(
            f"server.secret_file: {path} has {len(secret)} bytes;"
            f" it must have {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES}"
        )
    return secret


def _make_secret(path: Path) -> None:
    """Draws a secret; it is whole or not there, also if two servers start at once."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, secrets.token_hex(SECRET_BYTES).encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        os.unlink(draft)
    except OSError as error:
        raise StartupError(
            f"store.path: the secret beside it, {path}, can't be made: {error.strerror}"
        ) from error
