"""Models that installed packages register, by the entry point ``tacit.models``, and backbones, by ``tacit.backbones``.

    [project.entry-points."tacit.models"]
    chest-net = "clinic_models.nets:chest_net"

``chest_net(features, outputs, **options)`` returns a `Model`, as `register_model` takes it. A package is known here by
the digest of its source, and nothing of it is imported before that digest was compared with the one that is wanted.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from tacit.errors import TacitError

MODELS, BACKBONES = "tacit.models", "tacit.backbones"
_LOADED: dict[str, str] = {}


class Installed(NamedTuple):
    """A model of an installed package: its name, the package's version, and the SHA-256 of the package's source."""

    name: str
    version: str
    digest: str


def installed_names(group: str = MODELS) -> tuple[str, ...]:
    """The names of all models, or backbones, that installed packages register; nothing of them is imported."""
    return tuple(sorted({entry.name for entry in entry_points(group=group)}))


def installed(name: str, group: str = MODELS) -> Installed | None:
    """The model of this name as it lies on disk now, or none."""
    entry = _entry(name, group)
    if entry is None:
        return None
    version = entry.dist.version if entry.dist is not None else ""
    return Installed(name, version, source_digest(entry.module.split(".")[0]))


def loaded(name: str, digest: str | None = None, group: str = MODELS) -> Callable[..., Any]:
    """The function that makes an installed model, imported if its source has this digest (``None``: any).

    Formal guarantee: nothing of a package is imported whose source on disk has another digest than ``digest``, and what
    is imported, then or later, is compiled from the bytes that were digested: not from ``__pycache__``, nor
    from a file that is new since. Where the source has changed since this process imported it, nothing of it is used.
    """
    entry = _entry(name, group)
    if entry is None:
        raise TacitError(f"Expected an installed package that registers the model {name!r}, got none; install it.")
    package = entry.module.split(".")[0]
    files = _digested(package)
    found = _whole(files)
    if digest is not None and found != digest:
        raise TacitError(f"Expected the source of {name!r} to have the digest {digest}, got {found}; it has changed.")
    if package not in _LOADED:
        sys.meta_path.insert(0, DigestedFinder(package, {str(file.path): file.digest for file in files}))
    if _LOADED.setdefault(package, found) != found:
        raise TacitError(f"The source of {name!r} has changed since it was imported; start this process again.")
    make = entry.load()
    if not callable(make):
        raise TacitError(f"Expected {entry.value} to be a function that makes a model, got {type(make).__name__}.")
    return make


def _entry(name: str, group: str) -> EntryPoint | None:
    found = list({entry.value: entry for entry in entry_points(group=group, name=name)}.values())
    if len(found) > 1:
        places = ", ".join(sorted(entry.value for entry in found))
        raise TacitError(f"Expected one package that registers the model {name!r}, got {places}; remove one of them.")
    return found[0] if found else None


class _File(NamedTuple):
    name: str
    path: Path
    digest: str


def source_digest(package: str) -> str:
    """The SHA-256 of a package's files, by path and content; what Python compiles of them is left out."""
    return _whole(_digested(package))


def _whole(files: list[_File]) -> str:
    whole = hashlib.sha256()
    for name, _, own in files:
        whole.update(f"{len(name.encode())} {name} {own}\n".encode())
    return whole.hexdigest()


def _digested(package: str) -> list[_File]:
    """The files of a package, by name, with the SHA-256 of each."""
    spec = PathFinder.find_spec(package)
    if spec is None:
        raise TacitError(f"Expected the package {package!r} on this machine, got none; install it again.")
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [(path.relative_to(root).as_posix(), path) for root in roots for path in _files(root)]
    if not roots and spec.origin is not None:
        files = [(Path(spec.origin).name, Path(spec.origin))]
    return [_File(name, path, _sha256(path.read_bytes())) for name, path in sorted(files)]


def _files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and "__pycache__" not in path.relative_to(root).parts:
            yield path


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class DigestedFinder(MetaPathFinder):
    """Finds the modules of one package, if they are files that were digested, with the content that they had then."""

    def __init__(self, package: str, digests: Mapping[str, str]) -> None:
        self._package, self._digests = package, digests

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module as Python finds it; its source is compiled anew."""
        if name != self._package and not name.startswith(f"{self._package}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or isinstance(spec.loader, NamespaceLoader):
            return spec
        self.checked(spec.origin, Path(spec.origin).read_bytes())
        if not isinstance(spec.loader, SourceFileLoader):
            return spec
        below, loader = spec.submodule_search_locations, _Compiling(name, spec.origin)
        loader.finder = self
        return spec_from_file_location(name, spec.origin, loader=loader, submodule_search_locations=below)

    def checked(self, path: str, content: bytes) -> bytes:
        """The content of a file, if that is what was digested."""
        if self._digests.get(str(Path(path))) != _sha256(content):
            raise TacitError(
                f"{path} is not as it was when the digest of {self._package} was taken; it is not imported."
            )
        return content


class _Compiling(SourceFileLoader):
    """Compiles the source itself: a compiled file may be of another one, and says so only if it wants to."""

    finder: DigestedFinder

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.finder.checked(path, self.get_data(path)), path)
