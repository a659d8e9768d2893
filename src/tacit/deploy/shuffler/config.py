"""A shuffler's folder: its terms in ``shuffler.toml``, and its keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tacit.channel.sealing import Kind, SecretKey, new_secret
from tacit.deploy.permissions import own_text, read_secret, write_secret
from tacit.deploy.sections import Count, Section, changed_values, checked, read_toml
from tacit.deploy.signing import KeyText, Signer, new_signing_key
from tacit.deploy.wire import Name
from tacit.errors import TacitError

# What the shuffler has opened, or has told others, at its start.
_FIXED = ("name", "host", "port", "layer", "record", "tls")


class ShufflerError(TacitError):
    """A shuffler that cannot be run as it was set up."""


class TlsSection(Section):
    """Certificates in PEM files: the shuffler's own, and the authority that callers' certificates must be from."""

    certificate: str
    key: str
    callers: str


class Terms(Section):
    """What the shuffler's owner has set down.

    ``callers`` pins the public key of everybody who may call, as ``tacit server keys`` prints it; nobody else is heard.
    ``silos`` maps names to signing keys. ``layer`` is the shuffler's position in a cascade, from zero; ``before`` names
    the shuffler before it and its signing key. ``max_bytes`` may wait in memory, an equal part from each silo.
    ``record`` keeps everything received, for demonstrations.
    """

    name: Name
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9400
    min_silos: Annotated[int, Field(ge=2)] = 3
    callers: dict[Name, KeyText]
    silos: dict[Name, str]
    layer: Annotated[int, Field(ge=0, le=16)] = 0
    before: dict[Name, str] = Field(default_factory=dict)
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
    missing = f"No terms at {path}; make some with: tacit shuffler init {folder}"
    return terms_from(read_toml(path, ShufflerError, missing))


def terms_from(tree: dict[str, Any]) -> Terms:
    """Terms from plain values."""
    return checked(Terms, tree, ShufflerError, "The shuffler's terms")


def terms_text(folder: Path) -> bytes:
    """The terms of a folder as they stand on disk; empty where they cannot be read, or others may too."""
    return own_text(folder / "shuffler.toml")


def changed_terms(folder: Path, text: bytes, before: Terms) -> Terms:
    """The terms in an edited file, or an error where they cannot take effect while the shuffler runs."""
    path = folder / "shuffler.toml"
    terms = terms_from(changed_values(text, path, ShufflerError))
    fixed = [name for name in _FIXED if getattr(terms, name) != getattr(before, name)]
    if fixed:
        raise ShufflerError(f"{path}: restart needed for {', '.join(fixed)}. Until then everything is refused.")
    return terms


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
    """Write a sealing key into a file of its own."""
    write_secret(path, secret.kind.encode() + b"\n" + secret.raw)


def load_sealing(path: Path) -> SecretKey:
    """A sealing key from its file."""
    kind, _, raw = read_secret(path).partition(b"\n")
    if kind == b"x25519" and len(raw) == 32:
        return SecretKey("x25519", raw)
    if kind == b"mlkem768-x25519" and len(raw) == 96:
        return SecretKey("mlkem768-x25519", raw)
    raise ShufflerError(f"{path} is not a sealing key.")
