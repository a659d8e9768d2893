"""The models that a silo was given: bundles of studies that it has answered, in the folder ``models`` of its own.

A bundle is three files of fixed names, none of which is code. The daemon looks at their form and executes nothing.
Where an algorithm makes a model for each silo, the daemon writes this silo's into ``models/.own`` at the end of the
study; it goes into the bundle, beside the model for everybody else.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.deploy.permissions import write_secret
from tacit.deploy.wire import Bundle, RefusalError
from tacit.errors import TacitError, printable

FOLDER = "models"
RECEIVED = "received.json"
"""What the silo itself knows of a model: its study, its own price, who sent it and when, and the files' digests."""

MOST_TEXT = 1 << 20
"""Bytes of each file of a bundle but the weights."""

MOST_KEPT = 1 << 30
"""Bytes of all models of a silo; its owner removes those that are not needed."""

PERSONAL = "personal.safetensors"
"""The file of a bundle that has this silo's own model."""

_SHORT = 16
_ARRIVING, _OWN = ".arriving", ".own"


def keep_own(folder: Path, name: str, study: str, content: bytes) -> None:
    """Write the silo's own model of a study, whole or not at all; no server has any part in it."""
    place, arriving = folder / FOLDER / _OWN / f"{name}-{study[:_SHORT]}", folder / FOLDER / _ARRIVING
    shutil.rmtree(arriving, ignore_errors=True)
    _make_room(folder / FOLDER, len(content))
    write_secret(arriving / PERSONAL, content)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    (arriving / PERSONAL).replace(place)
    arriving.rmdir()


def own_leaves(folder: Path, name: str, study: str) -> dict[str, np.ndarray] | None:
    """The arrays of the silo's own model of a study by their names; none where it has none."""
    path = folder / FOLDER / _OWN / f"{name}-{study[:_SHORT]}"
    if not path.is_file():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return {key: leaf[0] for key, leaf in load(path.read_bytes()).items()}
    except (OSError, SafetensorError, IndexError):
        raise RefusalError("unable", "the silo's own model of this study is damaged") from None


def keep(folder: Path, name: str, request: Bundle, payload: bytes, facts: Mapping[str, Any]) -> bool:
    """Write a bundle into the silo's own folder, whole or not at all; whether it was not there yet.

    Formal guarantee: what is written lies in ``models/NAME-STUDY`` alone, where ``name`` is that of a plan and the rest
    are hexadecimal digits; it has the digests that its proposer has signed, and its owner's permissions. A model that
    is there in good order is never replaced.
    """
    parts = _checked(request, payload)
    place = _place(folder, name, request)
    digests = {file.name: file.digest for file in request.files}
    if place.exists() and is_intact(place):
        if _received(place)["files"] != digests:
            raise RefusalError("model", "the silo has another model of this study, and keeps it")
        return False
    arriving = folder / FOLDER / _ARRIVING
    for left in (arriving, place):  # of a daemon that was killed, or damaged since
        shutil.rmtree(left, ignore_errors=True)
    own = folder / FOLDER / _OWN / place.name
    parts |= {PERSONAL: own.read_bytes()} if own.is_file() else {}
    _make_room(folder / FOLDER, sum(map(len, parts.values())))
    known = {"name": place.name, "study": request.study, "plan": name, "files": digests, **facts}
    known |= {"own": hashlib.sha256(parts[PERSONAL]).hexdigest()} if PERSONAL in parts else {}
    for file_name, content in {**parts, RECEIVED: json.dumps(known, indent=1).encode()}.items():
        write_secret(arriving / file_name, content)
    arriving.replace(place)
    return True


def has(folder: Path, name: str, request: Bundle) -> bool:
    """Whether the silo has exactly this model of a study, in good order."""
    place = _place(folder, name, request)
    return is_intact(place) and _received(place)["files"] == {file.name: file.digest for file in request.files}


def _place(folder: Path, name: str, request: Bundle) -> Path:
    return folder / FOLDER / f"{name}-{request.study[:_SHORT]}"


def _checked(request: Bundle, payload: bytes) -> dict[str, bytes]:
    """The files of a bundle by name, each as long as was said, with its digest and in its form."""
    if sum(file.size for file in request.files) != len(payload):
        raise RefusalError("model", "the files of the bundle are not as long as the payload")
    parts, start = dict[str, bytes](), 0
    for file in request.files:
        content = payload[start : start + file.size]
        start += file.size
        if hashlib.sha256(content).hexdigest() != file.digest:
            raise RefusalError("model", f"{file.name} has another digest")
        if file.name != "model.safetensors" and file.size > MOST_TEXT:
            raise RefusalError("model", f"expected at most {MOST_TEXT} bytes of {file.name}, got {file.size}")
        if not _has_form(file.name, content):
            raise RefusalError("model", f"{file.name} is not what its name says")
        parts[file.name] = content
    return parts


def _has_form(name: str, content: bytes) -> bool:
    """Whether a file is what it is called: safetensors, a JSON object of this format, or a text.

    No text in it steers the terminal of who reads the card, or of who is shown the names of classes and columns.
    """
    try:
        if name == "README.md":
            return _is_plain(content.decode("utf-8"))
        if name == "model.json":
            tree = json.loads(content)
            return tree["format"] == 1 and all(map(_is_plain, _texts(tree)))
        header = int.from_bytes(content[:8], "little")
        return header <= MOST_TEXT and isinstance(json.loads(content[8 : 8 + header]), dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_plain(text: str) -> bool:
    return all(char in "\n\t" or unicodedata.category(char) != "Cc" for char in text)


def _texts(tree: Any) -> Iterator[str]:
    """Every text in a tree of plain values, keys among them."""
    parts = [*tree, *tree.values()] if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    if isinstance(tree, str):
        yield tree
    for part in parts:
        yield from _texts(part)


def _make_room(folder: Path, size: int) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if held + size > MOST_KEPT:
        raise RefusalError("full", f"expected at most {MOST_KEPT} bytes of models; the silo's owner removes old ones")


def is_intact(place: Path) -> bool:
    """Whether a model's files are those that were received, and the silo's own is as it was."""
    try:
        known = _received(place)
        files = {**known["files"], **({PERSONAL: known["own"]} if "own" in known else {})}
        return all(hashlib.sha256((place / name).read_bytes()).hexdigest() == files[name] for name in files)
    except (OSError, ValueError, KeyError):
        return False


def _received(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / RECEIVED).read_text(encoding="utf-8"))
    return found


def kept_models(folder: Path) -> list[dict[str, Any]]:
    """The models of a silo's folder, oldest first, as plain values."""
    places = (folder / FOLDER).iterdir() if (folder / FOLDER).is_dir() else ()
    rows = []
    for place in places:
        if place.name == _ARRIVING or not (place / RECEIVED).is_file():
            continue
        known, intact = _received(place), is_intact(place)
        when = datetime.datetime.fromtimestamp(known["received"], datetime.UTC).isoformat(timespec="seconds")
        shown = {key: known[key] for key in ("plan", "study", "proposer", "epsilon", "delta")}
        told = {"received": when, "intact": intact, "personal": "own" in known, "path": str(place.resolve())}
        rows.append({"name": place.name, **shown, **told})
    return sorted(rows, key=lambda row: (row["received"], row["name"]))


def find_model(folder: Path, words: str) -> Path:
    """The folder of the model that somebody means: by its name, its study's, or how its study's identity begins."""
    rows = kept_models(folder)
    found = [row for row in rows if words in (row["name"], row["plan"]) or (words and row["study"].startswith(words))]
    if len(found) == 1 and found[0]["intact"]:
        return Path(found[0]["path"])
    if len(found) == 1:
        raise TacitError(f"{found[0]['path']} is not as it was received; ask its proposer for: tacit server deliver")
    raise TacitError(_unfound(folder, words, [row["name"] for row in found or rows], bool(found)))


def _unfound(folder: Path, words: str, names: Sequence[str], several: bool) -> str:
    listed = ", ".join(names) or "none"
    if several:
        return f"Expected one model, but {printable(words)!r} are {listed}; give one of these names."
    return f"{folder} has no model {printable(words)!r}; it has: {listed}. See: tacit silo models {folder}"
