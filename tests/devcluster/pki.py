"""The run's certificate authority and keys, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

_DAYS = "365"
# Complete enough for clients that check chains strictly, as Python 3.13 does.
_EXTENSIONS = """\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
authorityKeyIdentifier = keyid
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = {names}
[client]
authorityKeyIdentifier = keyid
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
"""


@dataclass(frozen=True)
class Pki:
    """Files of a run's keys, below one directory."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def service_account_key(self) -> Path:
        return self.directory / "service-account.key"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"


def subject_alt_names(addresses: list[str], names: list[str]) -> str:
    """Renders the value of a subjectAltName extension."""
    return ",".join([f"IP:{address}" for address in addresses] + [f"DNS:{name}" for name in names])


def create(directory: Path, addresses: list[str], names: list[str]) -> Pki:
    """Makes the authority, the API server's pair and its client pair for the kubelet.

    Args:
        directory: where the files go; made with mode 0700.
        addresses: IP addresses the API server is reached at.
        names: DNS names the API server is reached at.

    Raises:
        DevclusterError: the openssl command is missing or failed.
    """
    directory.mkdir(parents=True, mode=0o700)
    pki = Pki(directory)
    for name in ("ca", "apiserver", "kubelet-client", "service-account"):
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pki.key(name))
    extensions = directory / "extensions.cnf"
    extensions.write_text(_EXTENSIONS.format(names=subject_alt_names(addresses, names)))
    _openssl(
        *("req", "-x509", "-new", "-sha256", "-days", _DAYS, "-subj", "/CN=devcluster"),
        *("-key", pki.key("ca"), "-out", pki.authority),
        *("-config", extensions, "-extensions", "authority"),
    )
    _sign(pki, "apiserver", "/CN=kube-apiserver", extensions, "server")
    _sign(pki, "kubelet-client", "/O=system:masters/CN=kube-apiserver", extensions, "client")
    return pki


def _sign(pki: Pki, name: str, subject: str, extensions: Path, section: str) -> None:
    request = pki.directory / f"{name}.csr"
    _openssl("req", "-new", "-sha256", "-subj", subject, "-key", pki.key(name), "-out", request)
    _openssl(
        *("x509", "-req", "-sha256", "-days", _DAYS, "-in", request, "-out", pki.certificate(name)),
        *("-CA", pki.authority, "-CAkey", pki.key("ca"), "-CAcreateserial"),
        *("-extfile", extensions, "-extensions", section),
    )


def _openssl(*arguments: str | Path) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise DevclusterError("the openssl command is missing: apt-get install openssl") from None
    except subprocess.CalledProcessError as error:
        raise DevclusterError(f"openssl {arguments[0]} failed: {error.stderr.strip()}") from error
