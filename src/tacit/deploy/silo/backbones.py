"""Features of a frozen backbone at a silo: computed once, kept beside the records, never released.

The owner installs a package that registers the backbone by the entry point ``tacit.backbones``, a function
``make(weights, digest)`` that returns one from arrays of records to arrays of features; `tacit.models.backbone` makes
it. To a study the features are the records.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.deploy.permissions import read_secret, replace_secret
from tacit.deploy.silo.policy import BackboneSection, Policy, PolicyError, digest
from tacit.errors import TacitError
from tacit.objectives.installed import BACKBONES, installed, loaded

_log = logging.getLogger("tacit.silo")


def with_features(policy: Policy, home: Path, records: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The records with features in the place of ``x``; they are computed if they are not kept yet.

    Formal guarantee: the backbone is the one of the policy, by the digests of its source and weights. What is kept can
    be read by the owner alone. A backbone whose features of a record change with the other records is refused.
    """
    section = policy.data.backbone
    if section is None:
        return dict(records)
    path = home / f"features-{_key(section, records)}.npy"
    features = _kept(path)
    if features is None:
        features = _computed(section, home, np.asarray(records["x"]))
        stored = io.BytesIO()
        np.save(stored, features, allow_pickle=False)
        replace_secret(path, stored.getvalue())
        _log.info("features of %s records are kept in %s", len(features), path)
    return {**records, "x": features}


def _kept(path: Path) -> np.ndarray | None:
    """The features in a file; none where there is no file, or one that a crash of an earlier version has cut short."""
    if not path.exists():
        return None
    try:
        return np.load(io.BytesIO(read_secret(path)), allow_pickle=False)
    except (ValueError, EOFError):
        _log.warning("%s is not whole: its features are computed again", path)
        return None


def _key(section: BackboneSection, records: Mapping[str, np.ndarray]) -> str:
    return hashlib.sha256(f"{section.meaning} {digest(dict(records))}".encode()).hexdigest()[:32]


def _computed(section: BackboneSection, home: Path, x: np.ndarray) -> np.ndarray:
    here = installed(section.name, BACKBONES)
    if here is None or (here.version, here.digest) != (section.version, section.digest):
        raise PolicyError(f"data.backbone: {section.name} is not installed as listed; compare tacit silo installed.")
    try:
        features = loaded(section.name, section.digest, BACKBONES)(home / section.weights, section.weights_digest)
        _check_apart(features, x.shape[1:])
        made = np.asarray(features(x), np.float32)
    except (TacitError, OSError) as error:
        raise PolicyError(f"data.backbone: {error}") from None
    if made.ndim != 2 or len(made) != len(x) or not np.isfinite(made).all():
        raise PolicyError(f"data.backbone: expected a row of finite features for each record, got {made.shape}.")
    return made


def _check_apart(features: Any, shape: tuple[int, ...]) -> None:
    """Raise if the features of a random record change with the records beside it."""
    rng = np.random.default_rng(0)
    first, others = (rng.normal(size=(3, *shape)).astype(np.float32) for _ in range(2))
    others[0] = first[0]
    if not np.array_equal(np.asarray(features(first))[0], np.asarray(features(others))[0]):
        raise TacitError("expected features of a record that do not depend on others; this backbone mixes records.")
