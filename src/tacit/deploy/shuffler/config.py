"""A shuffler's folder: its terms in ``shuffler.toml``, its keys, and what it must not forget."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.channel.sealing import Kind, SecretKey, Signer, new_secret, new_signing_key
from tacit.deploy.wire import Name
from tacit.errors import TacitError, explained

Count = Annotated[int, Field(ge=1)]


class ShufflerError(TacitError):
    """A shuffler that cannot be run as it was set up."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TlsSection(_Section):
    """Certificates in PEM files: the shuffler's own, and the authority that callers' certificates must be from."""

    certificate: str
    key: str
    callers: str


class Terms(_Section):
    """What the shuffler's owner has set down.

    ``silos`` maps names to signing keys. ``layer`` is this shuffler's place in a cascade, from zero; ``before`` is the
    name and signing key of the shuffler before it. ``max_bytes`` may wait in memory, an equal part from each silo.
    ``record`` keeps everything received, for demonstrations.
    """

    name: Name
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9400
    min_silos: Annotated[int, Field(ge=2)] = 3
    silos: dict[Name, str]
    layer: Annotated[int, Field(ge=0, le=16)] = 0
    before: dict[Name, str] = {}
    keep_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    max_bytes: Count = 1 << 30
    record: str | None = None
    tls: TlsSection


@dataclass(frozen=True)
class Keys:
    """A shuffler's two secrets."""

    seal: SecretKey
    sign: Signer


def load_terms(folder: Path) -> Terms:
    """The terms in a folder, or an error that names the field."""
    path = folder / "shuffler.toml"
    try:
        return terms_from(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ShufflerError(f"No terms at {path}; make some with: tacit shuffler init {folder}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ShufflerError(f"{path} is not valid TOML: {error}.") from None


def terms_from(tree: dict[str, Any]) -> Terms:
    """Terms from plain values."""
    try:
        return Terms.model_validate(tree)
    except ValidationError as error:
        lines = explained(error.errors(include_input=False), Terms)
        raise ShufflerError("The shuffler's terms cannot be used:\n  " + lines) from None


def write_secret(path: Path, raw: bytes) -> None:
    """A file that only its owner can read; an existing one is never written over."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ShufflerError(f"{path} exists; keys are made once. Remove it yourself if it must go.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(raw)


def read_secret(path: Path) -> bytes:
    """A secret from a file that nobody else can read."""
    try:
        if path.stat().st_mode & 0o077:
            raise ShufflerError(f"Expected {path} to be readable by its owner alone; run: chmod 600 {path}")
        return path.read_bytes()
    except FileNotFoundError:
        raise ShufflerError(f"No key at {path}; make it with `tacit shuffler init` or `tacit silo keys`.") from None


def make_keys(folder: Path, kind: Kind) -> Keys:
    """Fresh keys in a folder."""
    secret, signing = new_secret(kind), new_signing_key()
    write_sealing(folder / "seal.key", secret)
    write_secret(folder / "sign.key", signing)
    return Keys(secret, Signer(signing))


def load_keys(folder: Path) -> Keys:
    """The keys in a folder."""
    return Keys(load_sealing(folder / "seal.key"), Signer(read_secret(folder / "sign.key")))


def write_sealing(path: Path, secret: SecretKey) -> None:
    """A sealing key into a file of its own."""
    write_secret(path, secret.kind.encode() + b"\n" + secret.raw)


def load_sealing(path: Path) -> SecretKey:
    """A sealing key from its file."""
    kind, _, raw = read_secret(path).partition(b"\n")
    if kind == b"x25519" and len(raw) == 32:
        return SecretKey("x25519", raw)
    if kind == b"mlkem768-x25519" and len(raw) == 96:
        return SecretKey("mlkem768-x25519", raw)
    raise ShufflerError(f"{path} is not a sealing key.")
