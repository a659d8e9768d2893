"""The users of a party: two of the system's where root sets it up, numbers for containers, or whoever tries things out.

Root writes into folders of others here. A file appears under its name whole, with its owner and mode, and through no
link that somebody has put there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple

from tacit.deploy.consortium.pages import CONTAINER_USERS
from tacit.deploy.consortium.terms import ConsortiumError, Kind, account_name

_FIRST = {"silo": "silo", "server": "link", "shuffler": "shuffler"}
_SECOND = {"silo": "courier", "server": "proposer"}


class Account(NamedTuple):
    """A user, by number, with the group that its folders have."""

    uid: int
    gid: int
    name: str


class Accounts(NamedTuple):
    """Who owns the party's files, and who faces the network beside it (a courier) or leads studies (a proposer)."""

    first: Account
    second: Account

    @property
    def apart(self) -> bool:
        """Whether these are two users."""
        return self.first.uid != self.second.uid


Whose = Literal["users", "containers", "mine"]
"""Who is to own a party's files: users of the system, the numbers of containers' users, or whoever asks, on trial."""


def accounts_for(party: str, kind: Kind, home: Path, whose: Whose) -> Accounts:
    """The users of a party; those of the system are made where there are none."""
    if whose != "mine" and os.geteuid() != 0:
        raise ConsortiumError("Expected root, who makes users and gives them files; or --trial, where all is yours.")
    if whose == "mine":
        me = Account(os.geteuid(), os.getegid(), _name(os.geteuid()))
        return Accounts(me, me)
    if whose == "containers":
        one, two = CONTAINER_USERS
        return Accounts(Account(one, one, str(one)), Account(two, one if kind == "silo" else two, str(two)))
    own = account_name(party)
    # Caches are kept in a user's home: a folder in which nobody else writes.
    first = _made(own, home / _FIRST[kind])
    if kind not in _SECOND:
        return Accounts(first, first)
    second = _SECOND[kind]
    # The courier shares its silo's group, which reaches the door and nothing else.
    return Accounts(first, _made(f"{own}-{second}", home / second, *([own] if kind == "silo" else [])))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _made(name: str, home: Path, *groups: str) -> Account:
    with contextlib.suppress(KeyError):
        found = pwd.getpwnam(name)
        return Account(found.pw_uid, found.pw_gid, name)
    if shutil.which("useradd") is None:
        raise ConsortiumError(f"No useradd here to make the user {name}; make it, or join with --containers.")
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(home)]
    command += ["--shell", "/usr/sbin/nologin", *(["--groups", ",".join(groups)] if groups else []), name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConsortiumError(f"The user {name} cannot be made: {done.stderr.strip()}")
    found = pwd.getpwnam(name)
    return Account(found.pw_uid, found.pw_gid, name)


def folder(path: Path, owner: Account, mode: int = 0o700) -> Path:
    """Make a folder of somebody's, or give one to them."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _give(handle, owner)
        os.fchmod(handle, mode)
    finally:
        os.close(handle)
    return path


def put(path: Path, content: str | bytes, owner: Account, mode: int = 0o600) -> None:
    """Write a file of somebody's, or replace it; it is there whole, or as it was. Its folder must not be a link."""
    draft = f".{path.name}.{secrets.token_hex(4)}"
    place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=place)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                _give(file.fileno(), owner)
                os.fchmod(file.fileno(), mode)
            os.replace(draft, path.name, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=place)
            raise
    finally:
        os.close(place)


def text_of(path: Path) -> str:
    """A file's text, if it is a plain file and no link: whoever owns its folder may have put one there for root."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, encoding="ascii") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ConsortiumError(f"Expected a plain file at {path}.")
        return file.read()


def give(path: Path, owner: Account) -> None:
    """Make a file somebody's, if it is no link."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        _give(handle, owner)
    finally:
        os.close(handle)


def _give(handle: int, owner: Account) -> None:
    if os.geteuid() == 0:
        os.fchown(handle, owner.uid, owner.gid)
