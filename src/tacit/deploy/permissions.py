"""Files that only their owner may touch. The courier shares the folder's group, which reaches the socket and no more.

A mode that is too open is never repaired silently, because what was readable may have been read: the daemon names the
files and the command, and does not start.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from tacit.errors import TacitError

FOLDER_MODE = 0o710
"""What a silo's folder may allow at most: the courier's group passes through to the socket and can list nothing."""

_STATE = ("policy.toml", "records.npz", "ledger.sqlite", "ledger.sqlite-wal", "sign.key", "approved", "decided")
_COURIER = "the courier, which is not trusted, shares its group"


class PermissionsError(TacitError):
    """Somebody else could read or change what only its owner may."""


def write_secret(path: Path, content: str | bytes) -> None:
    """Write a new file that only its owner can read, whatever the umask; an existing one is never written over."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise PermissionsError(f"{path} exists and is never written over. Remove it yourself if it must go.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def replace_secret(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner can read, or replace it; it is there whole, or as it was."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    write_secret(draft, content)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def read_secret(path: Path) -> bytes:
    """Read a secret from a file that nobody else can read."""
    try:
        if path.stat().st_mode & 0o077:
            raise PermissionsError(f"Expected {path} to be readable by its owner alone; run: chmod 600 {path}")
        return path.read_bytes()
    except FileNotFoundError:
        raise PermissionsError(f"No key at {path}; make it with `tacit shuffler init` or `tacit silo keys`.") from None


def own_text(path: Path) -> bytes:
    """A file as it stands on disk now; empty where it cannot be read, or others may use it too."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            is_owners = not found.st_mode & 0o077 and found.st_uid in (0, os.geteuid())
            return file.read() if is_owners else b""
    except OSError:
        return b""


def check_silo(folder: Path, files: Iterable[Path], *, public: Iterable[Path] = (), because: str = _COURIER) -> None:
    """Raise unless the files of a silo (or a shuffler) are their owner's alone and nobody else can replace them.

    Anybody may read ``public`` files, but only their owner may change them. ``because`` says what there is to fear.

    The folder itself may let its group pass through (0710). Folders above, also of files that do not exist yet, must
    belong to root or the owner and be writable by nobody else, or be sticky.
    """
    files, public = list(files), list(public)
    private, shown = ([path for path in paths if path.exists()] for paths in (files, public))
    wrong = {} if _may(folder, FOLDER_MODE) else {folder: FOLDER_MODE}
    wrong |= {path: 0o700 if path.is_dir() else 0o600 for path in private if not _may(path, 0o700)}
    wrong |= {path: 0o755 if path.is_dir() else 0o644 for path in shown if not _may(path, 0o755)}
    if wrong:
        raise PermissionsError(f"Expected {_listed(wrong)} to be its owner's alone: {because}; run: {mending(wrong)}")
    foreign = [path for path in [folder, *private, *shown] if path.stat().st_uid not in {0, os.geteuid()}]
    if foreign:
        raise PermissionsError(
            f"Expected {_listed(foreign)} to belong to the daemon's user or to root, who alone may change it; run: "
            f"chown {os.geteuid()} {_quoted(foreign)}"
        )
    # Paths as they are written, and where they lead.
    ways = [way for path in [folder, *files, *public] for way in (path.absolute(), path.resolve())]
    _check_above({parent for way in ways for parent in way.parents} - {folder.absolute(), folder.resolve()})


def _check_above(folders: set[Path]) -> None:
    """Raise if somebody else could replace a file below these folders."""
    existing = sorted(path for path in folders if path.exists())
    # Whoever owns the root folder can do anything anyway; inside a user namespace that is not always user 0.
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    foreign = [path for path in existing if path.stat().st_uid not in trusted]
    loose = [path for path in existing if (mode := path.stat().st_mode) & 0o022 and not mode & stat.S_ISVTX]
    if foreign or loose:
        cures = [f"chown {os.geteuid()} {_quoted(foreign)}"] * bool(foreign)
        cures += [f"chmod go-w {_quoted(loose)}"] * bool(loose)
        raise PermissionsError(
            f"Expected nobody else to be able to replace what lies in {_listed(sorted({*foreign, *loose}))}; choose a "
            f"place of your own, or run: {' && '.join(cures)}"
        )


def check_owner(folder: Path) -> None:
    """Raise unless this process runs as the user who owns a silo's folder: what it writes must be the daemon's.

    Root could write there too, but the daemon cannot read what root has written.
    """
    name = other_owner(folder)
    if name is not None:
        raise PermissionsError(
            f"Expected the user who owns {folder}, {name}: files of others are shut to its daemon. Run, as root: "
            f"{as_owner(folder)} tacit silo ..."
        )


def as_owner(folder: Path) -> str:
    """What root types before a command to run it as the owner of a folder; containers' users have numbers alone."""
    name, found = other_owner(folder) or "root", folder.stat()
    if name.startswith("#"):
        return f"setpriv --reuid {found.st_uid} --regid {found.st_gid} --clear-groups"
    return f"runuser -u {shlex.quote(name)} --"


def other_owner(folder: Path) -> str | None:
    """The name of the user who owns a folder, where that is not the one who runs this process."""
    import pwd

    if not folder.exists() or (owner := folder.stat().st_uid) == os.geteuid():
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"#{owner}"


def too_open(paths: Iterable[Path]) -> dict[Path, int]:
    """Those files that others than their owner can read or change, with the mode that they should have."""
    return {path: 0o600 for path in paths if path.exists() and not _may(path, 0o600)}


def mending(modes: dict[Path, int]) -> str:
    """The commands that set modes right."""
    return " && ".join(f"chmod {mode:o} {shlex.quote(str(path))}" for path, mode in modes.items())


def check_courier(folder: Path) -> str | None:
    """Raise if this process could read or change the silo's files without being their owner.

    The owner may run the courier on trial; the result then says what that gives up.
    """
    if not folder.is_dir():
        raise PermissionsError(f"Expected a silo's folder at {folder}, which this user may pass through (mode 0710).")
    if folder.stat().st_uid == os.geteuid():
        return (
            "the courier runs as the user who owns the silo's folder, so whoever takes it over can read the records. "
            "For trials only: at work give it a user of its own (docs/deployment.md)."
        )
    paths = [folder, *(folder / name for name in _STATE)]
    reached = [path for path in paths if os.access(path, os.R_OK) or os.access(path, os.W_OK)]
    if reached:
        raise PermissionsError(
            f"Expected a courier that can reach nothing of the silo but its socket, but this user can read or change "
            f"{_listed(reached)}; as the owner run: chmod 710 {shlex.quote(str(folder))} && chmod go= FILE for each "
            "file in it, and do not run the courier as root."
        )
    return None


def _may(path: Path, most: int) -> bool:
    """Whether a mode allows group and others no more than ``most`` does."""
    return not stat.S_IMODE(path.stat().st_mode) & 0o077 & ~most


def _quoted(paths: Iterable[Path]) -> str:
    return " ".join(shlex.quote(str(path)) for path in paths)


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in paths)
