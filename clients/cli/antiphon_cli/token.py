"""`antiphon token`: draws tokens for the tokens file."""

import argparse
import hashlib
import re
import secrets
from datetime import UTC, datetime, timedelta

from antiphon_cli.outcome import WRONG_USE, complain

DESCRIPTION = """\
Draws a token and prints it, with the lines that let it in. The lines go into the file that the
server's setting server.tokens_file names; they hold the token's SHA-256 alone, so the token itself
is shown now and never again. A running server takes the changed file by itself."""
EXAMPLES = """\
examples:
  antiphon token --tenant acme
  antiphon token --tenant acme --days 90
  antiphon token --tenant operators --admin
"""
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("--tenant", required=True, metavar="NAME", help="whose token it is")
    parser.add_argument("--days", type=int, metavar="N", help="how long it holds (default: always)")
    parser.add_argument("--admin", action="store_true", help="let it open the admin port too")


def run(arguments: argparse.Namespace) -> int:
    """Prints a token, and returns the exit status."""
    if not _TENANT.fullmatch(arguments.tenant):
        complain("--tenant must be 1 to 64 of letters, digits, '.', '_' and '-', such as acme")
        return WRONG_USE
    if arguments.days is not None and not 1 <= arguments.days <= 36_500:
        complain(f"--days is {arguments.days}; it must be from 1 to 36500")
        return WRONG_USE
    token = f"antiphon_{secrets.token_urlsafe(32)}"
    print(f"# The token, to be sent as 'authorization: Bearer TOKEN':\n# {token}\n")
    print(f'[[tokens]]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"')
    print(f'tenant = "{arguments.tenant}"')
    if arguments.admin:
        print("admin = true")
    if arguments.days is not None:
        expires = datetime.now(UTC) + timedelta(days=arguments.days)
        print(f"expires = {expires:%Y-%m-%dT%H:%M:%SZ}")
    return 0
