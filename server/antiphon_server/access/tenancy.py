"""What keeps tenants apart behind the doors: their scopes of the cache, and their quotas."""

import secrets
import time
from dataclasses import dataclass

from antiphon_server.access.cache_scopes import SECRET_BYTES, CacheScopes
from antiphon_server.access.quota_limits import QuotaLimits
from antiphon_server.access.quotas import TenantQuotas


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """What all requests of a server go by."""

    scopes: CacheScopes
    quotas: TenantQuotas


def tenancy_of(limits: QuotaLimits) -> Tenancy:
    """Returns one where all tenants have the same quotas, and scopes are this process's own."""
    return Tenancy(
        scopes=CacheScopes(secrets.token_bytes(SECRET_BYTES), dict),
        quotas=TenantQuotas(lambda _: limits, clock_ns=time.monotonic_ns),
    )


def unlimited_tenancy() -> Tenancy:
    """Returns one without quotas."""
    return tenancy_of(QuotaLimits())
