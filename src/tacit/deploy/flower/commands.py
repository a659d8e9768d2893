"""What runs at the server: a SuperLink that only its own machine reaches, and the files to reach it with.

Nothing here needs the internet. TLS and the registration of nodes are on. Telemetry, update checks and installing at
run time are off, and the SuperLink executes no app.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.deploy.permissions import read_secret, write_secret
from tacit.errors import TacitError

LOOPBACK = "127.0.0.1"
_DAYS = 3650

_OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process; ``home`` is where it keeps its files."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **_OFF, "FLWR_HOME": str(home), "PATH": path}


def flower(name: str) -> str:
    """The path of one of Flower's commands, or how to get it."""
    found = shutil.which(name, path=environment(Path())["PATH"])
    if found is None:
        raise TacitError(f"{name} is not installed; install its extra: pip install 'TACIT_WHEEL[flower]'.")
    return found


class Control(NamedTuple):
    """How to reach a SuperLink on its own machine, and the secret of those who may execute runs."""

    address: str
    certificate: str
    secret: bytes


class LinkFiles(NamedTuple):
    """The files of a SuperLink, in its folder."""

    certificate: Path
    key: Path
    secret: Path
    control: Path
    database: Path


def link_files(folder: Path, control_port: int) -> LinkFiles:
    """Make what is missing of a SuperLink's files: all but its certificate are its owner's alone.

    ``control.toml`` is what `tacit server run` needs; it says the loopback port of the latest start.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = folder.resolve()
    names = ("loopback.pem", "loopback.key", "executor.secret", "control.toml", "superlink.sqlite")
    files = LinkFiles(*(folder / name for name in names))
    if not files.key.exists():
        _loopback_certificate(files.certificate, files.key)
    if not files.secret.exists():
        write_secret(files.secret, secrets.token_bytes(32))
    tree = {
        "address": f"{LOOPBACK}:{control_port}",
        "certificate": files.certificate.read_text(encoding="ascii"),
        "secret": read_secret(files.secret).hex(),
    }
    fresh = files.control.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    write_secret(fresh, tomli_w.dumps(tree))
    fresh.replace(files.control)
    return files


def read_control(path: Path) -> Control:
    """Read a SuperLink's ``control.toml``, which must be its owner's alone."""
    if not path.exists():
        raise TacitError(
            f"No file at {path}; give --control the control.toml of the SuperLink's folder (tacit server link), or "
            "your copy of it."
        )
    try:
        tree = tomllib.loads(read_secret(path).decode())
        return Control(str(tree["address"]), str(tree["certificate"]), bytes.fromhex(tree["secret"]))
    except (ValueError, KeyError, TypeError) as error:
        raise TacitError(f"{path} is not a control.toml as `tacit server link` writes it: {error}.") from None
    except PermissionError:
        raise TacitError(f"This user may not read {path}; its owner can give you a copy, mode 600.") from None


def superlink_command(files: LinkFiles, *, port: int) -> list[str]:
    """A SuperLink that listens on loopback only and executes nothing.

    It has TLS, lets in registered nodes only, gives runs only to whoever has the executors' secret, and keeps its state
    over a restart.
    """
    return [
        *(flower("flower-superlink"), "--host", LOOPBACK, "--port", str(port), "--isolation", "process"),
        *("--superexec-auth-secret-file", str(files.secret), "--ssl-ca-certfile", str(files.certificate)),
        *("--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)),
        *("--enable-supernode-auth", "--database", str(files.database), "--disable-runtime-dependency-installation"),
    ]


def node_key(path: Path) -> None:
    """Make a node's key as OpenSSH writes it, with its public half beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption()))
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public)


def _loopback_certificate(certificate: Path, key: Path) -> None:
    """A certificate for 127.0.0.1 that signs itself: Flower wants TLS on loopback too."""
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "SuperLink on loopback")])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=_DAYS))
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(own, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(forms.Encoding.PEM))
    pem = own.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    write_secret(key, pem)


def await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """See a process end that was asked to, or kill it when its time is up."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
