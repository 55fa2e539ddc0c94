"""`antiphon token`: draws tokens for the tokens file."""

import argparse
import hashlib
import re
import secrets
import sys
from datetime import UTC, datetime, timedelta

from antiphon_cli.outcome import WRONG_USE, complain

DESCRIPTION = """\
Draws a token, shows it on standard error, and writes the lines that let it in to standard output.
They go into the file that the server's setting server.tokens_file names, and hold the token's
SHA-256 alone: the token itself is shown now and never again. A running server takes the changed
file by itself. Clients send the token as 'authorization: Bearer TOKEN'; the other commands read it
from the file that --token-file names, which holds nothing else."""
EXAMPLES = """\
examples:
  antiphon token --tenant acme >> tokens.toml
  antiphon token --tenant acme --days 90 >> tokens.toml
  antiphon token --tenant operators --admin >> tokens.toml 2> operators.token
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
    print(token, file=sys.stderr)  # Not beside its digest: that goes into a file which others read.
    print(f'\n[[tokens]]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"')
    print(f'tenant = "{arguments.tenant}"')
    if arguments.admin:
        print("admin = true")
    if arguments.days is not None:
        expires = datetime.now(UTC) + timedelta(days=arguments.days)
        print(f"expires = {expires:%Y-%m-%dT%H:%M:%SZ}")
    return 0
