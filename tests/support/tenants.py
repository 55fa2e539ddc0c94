"""Tokens files, and calls in the name of a tenant."""

import hashlib
from pathlib import Path


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call that brings a token."""
    return (("authorization", f"Bearer {token}"),)


def token_entry(token: str, tenant: str, extra: str = "") -> str:
    """Returns the lines of a tokens file that let a token in."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[tokens]]\nsha256 = "{digest}"\ntenant = "{tenant}"\n{extra}\n'


def write_tokens(path: Path, *entries: str) -> Path:
    """Writes a tokens file; returns its path."""
    path.write_text("\n".join(entries), encoding="utf-8")
    return path
