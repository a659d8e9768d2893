"""Finding, checking and, where a public source exists, fetching the files of a data set.

A file is looked for in the directory that the caller names, else in ``TACIT_DATA``, and then in a cache in the home
directory; if it is nowhere, it is fetched from its public source into the cache. Whatever is read has a known
checksum. The cache remembers size and time of the files that it has compared, so a large file is hashed only once.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs

from tacit.data.federation import DataError

TIMEOUT = 30.0
"""Seconds without an answer after which a source counts as unreachable."""


@dataclass(frozen=True)
class Source:
    """Where the public can get a file, its checksum there, and how its bytes become those of our file."""

    url: str
    sha256: str
    convert: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True)
class DataFile:
    """A file of the data folder, which has one sub-folder per data set.

    Attributes:
        path: relative to the data folder.
        sha256: checksums of acceptable versions: ours, and that of a converted public file where it differs.
        source: where to fetch it.
        how: what to do where there is no source.
        arrays: of an npz file, the checksum of its arrays, for archives that differ only in compression.
    """

    path: str
    sha256: tuple[str, ...]
    source: Source | None = None
    how: str = ""
    arrays: str | None = None


def locate(file: DataFile, directory: Path | None, verify: bool) -> Path:
    """The path of a file that has been checked, after fetching it if need be; one checked before is not read again."""
    named = directory if directory is not None else os.environ.get("TACIT_DATA")
    folders = [Path(named).expanduser()] if named else []
    places = [folder / file.path for folder in (*folders, cache_directory())]
    for path in places:
        if path.is_file():
            if verify and _remembered().get(str(path.resolve())) != _stamp(file, path):
                _compare(file, path)
                _remember(file, path)
            return path
    missing = (
        f"Missing data file {file.path!r}: looked for {' and '.join(map(str, places))}. Set the environment variable "
        f"TACIT_DATA, or directory=, to a folder that holds {file.path}."
    )
    if file.source is None:
        raise DataError(f"{missing} It has no public source to fetch it from. {file.how}")
    try:
        return fetch(file, file.source, cache_directory() / file.path)
    except DataError as error:
        raise DataError(f"{missing} {error}") from error


def cache_directory() -> Path:
    """Where fetched files and remembered checksums live."""
    return Path(platformdirs.user_cache_dir("tacit")) / "data"


def fetch(file: DataFile, source: Source, path: Path) -> Path:
    """Download, check, convert and store a file; a failure leaves nothing behind."""
    content = download(source.url)
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise DataError(
            f"Expected {source.url} to have sha256 {source.sha256}, but it has {found}: the source has changed or the "
            "download was damaged. Nothing was stored; try again, or put the file there yourself."
        )
    try:
        with _atomically(path) as temporary:
            temporary.write_bytes(source.convert(content))
            _compare(file, temporary)
    except OSError as error:
        raise DataError(f"Could not store it as {path} ({error}); make room, or name another folder.") from error
    _remember(file, path)
    return path


def download(url: str) -> bytes:
    """The bytes at ``url``."""
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            content: bytes = response.read()
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Could not fetch it from its public source {url} ({reason}): connect to the internet, or "
            "download it elsewhere and copy it into that folder."
        ) from error
    return content


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _compare(file: DataFile, path: Path) -> None:
    found = digest(path)
    if found not in file.sha256 and not (file.arrays and _arrays_digest(path) == file.arrays):
        raise DataError(
            f"Expected {path} to have sha256 {file.sha256[0]}, but it has {found}: it is damaged, or another "
            "version. Replace it, or pass verify=False to read a file of your own with the same columns."
        )


def _arrays_digest(path: Path) -> str:
    total = hashlib.sha256()
    try:
        with np.load(path) as archive:
            for name in sorted(archive.files):
                total.update(name.encode() + archive[name].tobytes())
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        return "unreadable"
    return total.hexdigest()


@contextlib.contextmanager
def _atomically(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that replaces it on success and vanishes on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _stamp(file: DataFile, path: Path) -> list[str | int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, file.sha256[0]]


def _remembered() -> dict[str, list[str | int]]:
    try:
        memory = json.loads((cache_directory() / "verified.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(file: DataFile, path: Path) -> None:
    memory = _remembered() | {str(path.resolve()): _stamp(file, path)}
    # A cache that cannot be written costs time at the next load, nothing else.
    with contextlib.suppress(OSError), _atomically(cache_directory() / "verified.json") as temporary:
        temporary.write_text(json.dumps(memory), encoding="utf-8")
