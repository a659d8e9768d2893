"""How far a run is: shown to whoever watches, and kept in a folder, so that a stopped run can go on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from tacit import __version__
from tacit.errors import TacitError
from tacit.keeping import load_arrays, plain, restored, save_arrays
from tacit.simulate.compiled import Stage

PRIVATE = "training"
"""The part of a run that costs privacy."""
NO_NOISE = "these rounds, no noise"
CONVERGED = "without privacy, converged"
"""Baselines: the same rounds, clipped and without noise; training to convergence on all records and each silo's."""
_PATIENCE = 2.0  # seconds between two files; the last stage of a part is always kept
_SHARE = 20  # the running price may take one part in this many of the time


class Sight(NamedTuple):
    """One part of a run at one moment: training loss by grid point, and the dearest silo's epsilon."""

    label: str
    done: int
    total: int
    loss: np.ndarray | None
    epsilon: float | None


Progress = Callable[[Sight], None]


class Stages:
    """The parts of one run. ``spent`` prices the first rounds of the private part."""

    def __init__(self, folder: Path | None, progress: Progress | None, spent: Callable[[int], float | None]) -> None:
        self.folder, self.progress, self.spent = folder, progress, spent

    def tell(self, label: str, done: int, total: int) -> None:
        """Show how far a part is that keeps no stages."""
        if self.progress is not None:
            self.progress(Sight(label, done, total, None, None))

    def keeper(self, label: str) -> Part | None:
        """The keeper of one part of the run; ``None`` where nobody watches and nothing is kept."""
        return None if self.folder is None and self.progress is None else Part(self, label)


class Part:
    """One part of a run: the keeper of its stages."""

    def __init__(self, stages: Stages, label: str) -> None:
        self._stages, self._label = stages, label
        self._written = self._price_after = time.monotonic()
        self._epsilon: float | None = None
        name = f"{label.replace(', ', '-').replace(' ', '-')}.npz"
        self._path = None if stages.folder is None else stages.folder / name

    def last(self, fresh: Stage) -> Stage | None:
        """The stage that an earlier run left, if it left one."""
        if self._path is None or not self._path.is_file():
            return None
        return load_stage(self._path, fresh)

    def keep(self, stage: Stage, total: int) -> None:
        """Show the stage, and write it to disk every few seconds and at the end."""
        if self._stages.progress is not None:
            self._stages.progress(Sight(self._label, stage.done, total, _loss(stage), self._price(stage.done, total)))
        waited = time.monotonic() - self._written
        if self._path is not None and (stage.done == total or waited > _PATIENCE):
            save_stage(self._path, stage)
            self._written = time.monotonic()

    def _price(self, done: int, total: int) -> float | None:
        """The epsilon spent so far: computed as often as that is cheap, and at the end."""
        if self._label != PRIVATE:
            return None
        started = time.monotonic()
        if started >= self._price_after or done == total:
            self._epsilon = self._stages.spent(done)
            self._price_after = started + _SHARE * (time.monotonic() - started)
        return self._epsilon


def _loss(stage: Stage) -> np.ndarray | None:
    """The latest training loss of every point, averaged over seeds."""
    values = stage.trace.get("train_loss", np.empty((1, 1, 0)))
    measured = np.flatnonzero(~np.isnan(values).all(axis=(0, 1)))
    if not len(measured):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a point that diverged in every seed has no mean
        return np.asarray(np.nanmean(values[:, :, measured[-1]], axis=0))


def save_stage(path: Path, stage: Stage) -> None:
    """Write a stage whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = {"done": stage.done, "version": __version__, "trace": list(stage.trace)}
    arrays = {f"leaf{i}": plain(leaf) for i, leaf in enumerate(jax.tree.leaves(stage.carry))}
    arrays |= {f"trace{i}": values for i, values in enumerate(stage.trace.values())}
    save_arrays(path, meta, arrays)


def load_stage(path: Path, fresh: Stage) -> Stage:
    """A stage in the form of ``fresh``, which is the beginning of the same run."""
    try:
        meta, arrays = load_arrays(path)
        trace = {name: arrays.pop(f"trace{i}") for i, name in enumerate(meta["trace"])}
    except (OSError, ValueError, KeyError) as error:
        raise TacitError(f"{path} cannot be read ({error}); delete it to begin this part again.") from None
    leaves, form = jax.tree.flatten(fresh.carry)
    expected = {f"leaf{i}": plain(leaf) for i, leaf in enumerate(leaves)}
    fits = set(arrays) == set(expected) and all(
        arrays[name].shape == leaf.shape and arrays[name].dtype == leaf.dtype for name, leaf in expected.items()
    )
    if meta["version"] != __version__ or not fits:
        raise TacitError(
            f"{path} is of another version of Tacit or for another study; run the study anew, without --resume."
        )
    carried = [restored(arrays[f"leaf{i}"], old) for i, old in enumerate(leaves)]
    return Stage(meta["done"], jax.tree.unflatten(form, carried), trace)
