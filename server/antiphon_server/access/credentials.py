"""The tokens file: who comes in with which credential, and what each tenant may use.

A token is kept as its SHA-256 alone. Tokens are drawn at random, so a plain hash can't be guessed
back, and it costs a call nothing.
"""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from antiphon_engine.api.errors import StartupError
from antiphon_server.access.quota_limits import QuotaLimits

MAX_FILE_BYTES: Final = 8 << 20
MAX_ENTRIES: Final = 10_000
DIGEST_START_BYTES: Final = 16

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who holds a credential."""

    tenant: str
    admin: bool = False
    """Whether it opens the admin port too."""
    expire_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A token as the file has it."""

    digest: bytes = field(repr=False)
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSettings:
    """What is set for one tenant."""

    cache_group: str = ""
    """Tenants that name the same group share cached prefixes; empty: with nobody."""
    quotas: Mapping[str, int] = field(default_factory=dict)
    """What takes the place of the server's own quotas, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """All that a tokens file says."""

    by_digest_start: Mapping[bytes, KnownToken] = field(default_factory=dict, repr=False)
    """Tokens by the first bytes of their SHA-256."""
    by_certificate: Mapping[str, Identity] = field(default_factory=dict)
    """By a name that a client's certificate bears: its common name, or a DNS name or URI."""
    tenants: Mapping[str, TenantSettings] = field(default_factory=dict)


def load_credentials(path: Path, *, key: str) -> Credentials:
    """Reads a tokens file.

    Args:
        path: The file.
        key: The setting that names it, for messages.

    Raises:
        StartupError: it can't be read or has a mistake; names file and entry, never a token.
    """
    where = f"{key}: {path}"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StartupError(f"{where}: has more than {MAX_FILE_BYTES} bytes, the limit")
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"{where}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # The parser's own words may hold a piece of the file, but for the place at their end.
        place = re.search(r" \(at (line \d+, column \d+|end of document)\)$", str(error))
        raise StartupError(f"{where}: is not TOML{place[0] if place else ''}") from None
    unknown = sorted(set(tree) - {"tokens", "certificates", "tenants"})
    if unknown:
        raise StartupError(
            f"{where}: there is no {unknown[0]!r:.64}; there are [[tokens]], [[certificates]] and"
            " [tenants.NAME]"
        )
    tokens = _read_entries(tree, "tokens", "sha256", where=where, parse=_parse_digest)
    return Credentials(
        by_digest_start={
            digest[:DIGEST_START_BYTES]: KnownToken(digest, identity)
            for digest, identity in tokens.items()
        },
        by_certificate=_read_entries(
            tree, "certificates", "name", where=where, parse=_parse_certificate_name
        ),
        tenants=_read_tenants(tree.get("tenants", {}), where=where),
    )


def _read_entries(
    tree: Mapping[str, object],
    section: str,
    name_key: str,
    *,
    where: str,
    parse: Callable[[object], T | None],
) -> dict[T, Identity]:
    entries = tree.get(section, [])
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise StartupError(f"{where}: write [[{section}]], at most {MAX_ENTRIES} times")
    found: dict[T, Identity] = {}
    for number, entry in enumerate(entries, start=1):
        at = f"{where}: [[{section}]] number {number}"
        if not isinstance(entry, dict):
            raise StartupError(f"{at}: is no table")
        unknown = sorted(set(entry) - {name_key, "tenant", "admin", "expires"})
        if unknown:
            raise StartupError(f"{at}: there is no {unknown[0]!r}")
        name = parse(entry.get(name_key))
        if name is None:
            expected = "the 64 hexadecimal digits of a SHA-256" if name_key == "sha256" else "text"
            raise StartupError(f"{at}: {name_key} must be {expected}")
        if name in found:
            raise StartupError(f"{at}: its {name_key} is there twice")
        found[name] = _read_identity(entry, at=at)
    return found


def _read_identity(entry: Mapping[str, object], *, at: str) -> Identity:
    tenant, admin, expires = entry.get("tenant"), entry.get("admin", False), entry.get("expires")
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise StartupError(
            f"{at}: tenant must be 1 to 64 of letters, digits, '.', '_' and '-', such as \"acme\""
        )
    if not isinstance(admin, bool):
        raise StartupError(f"{at}: admin must be true or false")
    if expires is not None and not isinstance(expires, datetime):
        raise StartupError(f"{at}: expires must be a time such as 2030-01-31T00:00:00Z")
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return Identity(tenant=tenant, admin=admin, expire_time=expires)


def _read_tenants(tables: object, *, where: str) -> dict[str, TenantSettings]:
    if not isinstance(tables, dict) or len(tables) > MAX_ENTRIES:
        raise StartupError(f"{where}: write [tenants.NAME], at most {MAX_ENTRIES} times")
    return {name: _read_tenant(name, table, where=where) for name, table in tables.items()}


def _read_tenant(name: str, table: object, *, where: str) -> TenantSettings:
    at = f"{where}: [tenants.{name:.64}]"
    if not _TENANT.fullmatch(name) or not isinstance(table, dict):
        raise StartupError(f"{at}: must be a table under a tenant's name")
    group = table.get("cache_group", "")
    if not isinstance(group, str) or len(group) > 64:
        raise StartupError(f"{at}: cache_group must be text of at most 64 characters")
    known = [limit.name for limit in dataclasses.fields(QuotaLimits)]
    quotas = {key: value for key, value in table.items() if key != "cache_group"}
    for key, value in quotas.items():
        if key not in known:
            raise StartupError(
                f"{at}: there is no {key!r:.64}; there are cache_group, {', '.join(known)}"
            )
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 60:
            raise StartupError(f"{at}: {key} must be a whole number; 0: no limit")
    return TenantSettings(cache_group=group, quotas=quotas)


def _parse_digest(value: object) -> bytes | None:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value.lower()):
        return None
    return bytes.fromhex(value)


def _parse_certificate_name(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 256 else None
