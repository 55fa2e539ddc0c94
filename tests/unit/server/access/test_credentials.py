from datetime import UTC, datetime
from pathlib import Path

import pytest

from antiphon_engine.api.errors import AntiphonError, StartupError
from antiphon_server.access.authentication import CredentialCheck, let_anyone_in
from antiphon_server.access.credentials import Credentials, load_credentials
from antiphon_server.caller import Caller
from support.tenants import bearer, token_entry, write_tokens

KEY = "server.tokens_file"
NOW = datetime(2026, 5, 1, tzinfo=UTC)


class Call:
    """What a call brings along."""

    def __init__(self, metadata=(), **auth_context: bytes) -> None:
        self._metadata = metadata
        self._auth_context = {key: [value] for key, value in auth_context.items()}

    def invocation_metadata(self):
        return self._metadata

    def auth_context(self):
        return self._auth_context


def read(path: Path, *entries: str) -> Credentials:
    return load_credentials(write_tokens(path / "tokens.toml", *entries), key=KEY)


def tenant_of(credentials: Credentials, call: Call, *, needs_admin: bool = False) -> str:
    check = CredentialCheck(lambda: credentials, needs_admin=needs_admin, now=lambda: NOW)
    try:
        return check(call).tenant
    except AntiphonError as error:
        return error.reason.value


def test_token_makes_its_tenant_the_caller(tmp_path: Path) -> None:
    credentials = read(tmp_path, token_entry("tk-a", "acme"), token_entry("tk-b", "bolt"))

    assert tenant_of(credentials, Call(bearer("tk-a"))) == "acme"
    assert tenant_of(credentials, Call(bearer("tk-b"))) == "bolt"
    assert tenant_of(credentials, Call((("authorization", "bEARER  tk-b "),))) == "bolt"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        bearer("tk-wrong"),
        bearer(""),
        bearer("tk-a" * 1000),
        (("authorization", "tk-a"),),
        (("authorization", "Basic tk-a"),),
        bearer("tk-a") + bearer("tk-a"),
        (("authorization", b"Bearer tk-a"),),
        (("Authorization-bin", b"Bearer tk-a"),),
        bearer("ä\ud800"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, metadata: object) -> None:
    credentials = read(tmp_path, token_entry("tk-a", "acme"))

    assert tenant_of(credentials, Call(metadata)) == "BAD_CREDENTIAL"


def test_all_refusals_say_the_same_and_no_token(tmp_path: Path) -> None:
    expired = token_entry("tk-old", "acme", "expires = 2020-01-01T00:00:00Z")
    credentials = read(tmp_path, token_entry("tk-a", "acme"), expired)
    check = CredentialCheck(lambda: credentials, needs_admin=True, now=lambda: NOW)
    said = set()
    for metadata in ((), bearer("tk-a"), bearer("tk-old"), bearer("tk-x"), bearer("")):
        with pytest.raises(AntiphonError) as caught:
            check(Call(metadata))
        said.add((str(caught.value), *caught.value.metadata))

    assert len(said) == 1
    assert "tk-" not in str(said)


@pytest.mark.parametrize(
    ("expires", "tenant"),
    [
        ("2026-05-01T00:00:00Z", "BAD_CREDENTIAL"),
        ("2026-05-01T00:00:01Z", "acme"),
        ("2026-05-01T02:00:00+02:00", "BAD_CREDENTIAL"),
        ("2026-05-01T00:00:01", "acme"),
    ],
)
def test_token_holds_until_it_expires(tmp_path: Path, expires: str, tenant: str) -> None:
    credentials = read(tmp_path, token_entry("tk-a", "acme", f"expires = {expires}"))

    assert tenant_of(credentials, Call(bearer("tk-a"))) == tenant


def test_admin_port_takes_only_what_is_meant_for_it(tmp_path: Path) -> None:
    credentials = read(
        tmp_path, token_entry("tk-a", "acme"), token_entry("tk-ops", "ops", "admin = true")
    )

    assert tenant_of(credentials, Call(bearer("tk-a")), needs_admin=True) == "BAD_CREDENTIAL"
    assert tenant_of(credentials, Call(bearer("tk-ops")), needs_admin=True) == "ops"
    assert tenant_of(credentials, Call(bearer("tk-ops"))) == "ops"


def test_certificate_makes_its_tenant_the_caller_unless_a_token_comes(tmp_path: Path) -> None:
    entry = '[[certificates]]\nname = "client.acme.example"\ntenant = "acme"\n'
    credentials = read(tmp_path, entry, token_entry("tk-b", "bolt"))
    name = b"client.acme.example"

    assert tenant_of(credentials, Call(x509_common_name=name)) == "acme"
    assert tenant_of(credentials, Call(x509_subject_alternative_name=name)) == "acme"
    assert tenant_of(credentials, Call(x509_common_name=b"other")) == "BAD_CREDENTIAL"
    assert tenant_of(credentials, Call(bearer("tk-b"), x509_common_name=name)) == "bolt"
    assert tenant_of(credentials, Call(bearer("tk-x"), x509_common_name=name)) == "BAD_CREDENTIAL"


def test_server_without_credentials_has_one_tenant() -> None:
    assert let_anyone_in(Call(bearer("anything"))) == Caller(tenant="")


def test_settings_of_tenants_are_read(tmp_path: Path) -> None:
    tenants = "[tenants.acme]\ncache_group = 'both'\nmax_sessions = 3\n[tenants.bolt]\n"

    read_ones = read(tmp_path, tenants).tenants

    assert read_ones["acme"].cache_group == "both"
    assert read_ones["acme"].quotas == {"max_sessions": 3}
    assert read_ones["bolt"].quotas == {}


MISTAKES = {
    "tokens = 3": r"\[\[tokens\]\]",
    "\nmy-secret-token\n": r"is not TOML \(at line 2, column 16\)$",
    "[[token]]": "there is no 'token'",
    '[[tokens]]\ntenant = "a"': "number 1: sha256 must be",
    '[[tokens]]\nsha256 = "my-secret-token"\ntenant = "a"': "number 1: sha256 must be",
    token_entry("x", "a b"): "tenant must be",
    token_entry("x", ""): "tenant must be",
    token_entry("x", "a", "admin = 1"): "admin must be",
    token_entry("x", "a", "expires = 'soon'"): "expires must be",
    token_entry("x", "a", "expire = 2020-01-01T00:00:00Z"): "there is no 'expire'",
    token_entry("x", "a") + token_entry("x", "b"): "number 2: its sha256 is there twice",
    '[[certificates]]\nname = ""\ntenant = "a"': "number 1: name must be",
    "[tenants.acme]\nmax_session = 3": "there is no 'max_session'",
    "[tenants.acme]\nmax_sessions = -1": "max_sessions must be",
    "[tenants.acme]\nmax_sessions = true": "max_sessions must be",
    "[tenants.acme]\ncache_group = 3": "cache_group must be",
    "[tenants]\nacme = 3": "must be a table",
}


@pytest.mark.parametrize("content", MISTAKES)
def test_mistake_is_named_with_its_file_and_no_secret(tmp_path: Path, content: str) -> None:
    with pytest.raises(StartupError, match=MISTAKES[content]) as caught:
        read(tmp_path, content)

    assert str(caught.value).startswith(f"{KEY}: {tmp_path / 'tokens.toml'}")
    assert "my-secret-token" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"none\.toml: can't be read: No such file"):
        load_credentials(tmp_path / "none.toml", key=KEY)


def test_credentials_are_not_shown(tmp_path: Path) -> None:
    credentials = read(tmp_path, token_entry("tk-a", "acme"))

    assert "digest" not in repr(credentials)
