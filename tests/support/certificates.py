"""Certificates for tests, made by the openssl command: authorities, and what they vouch for."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_AUTHORITY = """
[ca]
default_ca = own
[own]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates, with any times."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        (directory / "index.txt").touch()
        (directory / "serial").write_text("01\n")
        (directory / "own.cnf").write_text(_AUTHORITY)
        self._pair = Pair(directory / "ca.pem", directory / "ca.key")
        self._run(
            *("req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem"),
            *("-days", "3650", "-subj", f"/CN=authority of {directory.name}"),
        )

    @property
    def cert(self) -> Path:
        """Its own certificate: who trusts that trusts all that it signs."""
        return self._pair.cert

    def sign(self, name: str, *, start: str = "20200101", end: str = "20990101") -> Pair:
        """Makes a certificate for a name, which is also one for localhost."""
        made = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        names = f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1"
        self._run(
            *("req", "-new", *_NEW_KEY, "-keyout", made.key.name, "-out", "request.csr"),
            *("-subj", f"/CN={name}", "-addext", names),
        )
        self._run(
            *("ca", "-batch", "-notext", "-config", "own.cnf", "-in", "request.csr"),
            *("-keyfile", "ca.key", "-cert", "ca.pem", "-out", made.cert.name),
            *("-startdate", f"{start}000000Z", "-enddate", f"{end}000000Z"),
        )
        return made

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments],
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
