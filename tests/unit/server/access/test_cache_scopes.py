import stat
from pathlib import Path

import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.messages import Scope
from antiphon_server.access.cache_scopes import CacheScopes, load_secret
from antiphon_server.access.credentials import TenantSettings

SECRET = b"0123456789abcdef"


def scope_of(tenant: str, *, secret: bytes = SECRET, cache_scope: str = "", **groups: str) -> Scope:
    settings = {name: TenantSettings(cache_group=group) for name, group in groups.items()}
    scopes = CacheScopes(secret, lambda: settings)
    return scopes.engine_scope(Scope(tenant=tenant, cache_scope=cache_scope))


def test_tenants_have_scopes_of_their_own_that_stay() -> None:
    assert scope_of("acme") == scope_of("acme")
    assert scope_of("acme") != scope_of("bolt")


def test_scope_can_not_be_named_without_the_secret() -> None:
    assert scope_of("acme") != scope_of("acme", secret=b"x" * 16)
    assert "acme" not in scope_of("acme").tenant


def test_what_a_caller_chooses_leads_to_no_other_tenant() -> None:
    theirs = scope_of("acme")

    for chosen in ("acme", theirs.tenant, "group\0acme"):
        mine = scope_of("bolt", cache_scope=chosen)
        assert mine.tenant == scope_of("bolt").tenant != theirs.tenant


def test_tenants_of_a_group_share() -> None:
    assert scope_of("acme", acme="g", bolt="g") == scope_of("bolt", acme="g", bolt="g")
    assert scope_of("acme", acme="g") != scope_of("acme", acme="h")


def test_group_is_told_from_a_tenant_of_that_name() -> None:
    assert scope_of("acme", acme="bolt") != scope_of("bolt", acme="bolt")


def test_secret_is_drawn_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sessions.db.secret"

    secret = load_secret(path, may_make=True)

    assert len(secret) >= 32
    assert load_secret(path, may_make=True) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_folder_that_is_made_for_it_is_its_owners_alone(tmp_path: Path) -> None:
    load_secret(tmp_path / "new" / "secret", may_make=True)

    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_secret_that_can_not_be_made_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match=r"store\.path: .*file/secret, can't be made"):
        load_secret(tmp_path / "file" / "secret", may_make=True)


def test_two_secrets_are_different(tmp_path: Path) -> None:
    drawn = [load_secret(tmp_path / name, may_make=True) for name in ("a", "b")]

    assert drawn[0] != drawn[1]


def test_secret_that_is_named_must_be_there_and_long_enough(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"secret_file: .*none can't be read"):
        load_secret(tmp_path / "none", may_make=False)
    short = tmp_path / "short"
    short.write_text("hush")
    with pytest.raises(StartupError, match=r"short has 4 bytes; it must have 16 to") as caught:
        load_secret(short, may_make=False)
    assert "hush" not in str(caught.value)
