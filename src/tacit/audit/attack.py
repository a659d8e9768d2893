"""Attacks on transcripts: a number for each transcript that is large where world one is likely.

An attack is fitted on trials of its own. Where a round has one noiseless message in each world, the likelihood ratio of
Gaussian noise is linear, and its weights come from the measured covariance of the whole transcript (so noise that is
used twice gives itself away). Where batches are random, the noiseless message is a mixture of a few atoms in each
world; rounds are independent, and the exact log-likelihood ratios of the mixtures are summed. What is not finite is a
sign too. A wrong model of the transcript weakens an attack; a bound stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import special

from tacit.audit.bounds import Counts

_STILL_TRIALS = 4
_QUIET_TRIALS = 2048
_SKETCH_TRIALS = 256
_MOST_ATOMS = 48
_CERTAIN = 1e9
_CANDIDATES = 100
_STRICT = 0.9999
_FEWEST_HITS = 100
_COMMON = 0.2

Strength = Callable[[Counts, float], float]


class Scene(Protocol):
    """Two neighbouring sets of records of a silo, and a hostile server: what there is to attack."""

    @property
    def varied(self) -> bool:
        """Whether transcripts without noise differ from trial to trial, as they do where batches are random."""

    def draw(self, world: int, trials: int, *, quiet: bool = False) -> np.ndarray:
        """Fresh transcripts with axes (trials, rounds, numbers in a message); ``quiet`` ones are without noise."""


@dataclass(frozen=True)
class Model:
    """What the attacker knows of a scene: noiseless atoms with weights in both worlds, and the scale of noise."""

    weights: np.ndarray | None
    atoms: tuple[np.ndarray, np.ndarray]
    log_shares: tuple[np.ndarray, np.ndarray]
    deviation: np.ndarray
    when_not_finite: float

    def scores(self, transcripts: np.ndarray) -> np.ndarray:
        """One number for each transcript; large speaks for world one."""
        finite = np.isfinite(transcripts).all(axis=(1, 2))
        clean = _clean(transcripts)
        if self.weights is not None:
            plain = np.tensordot(clean - self.atoms[1][:, 0], self.weights, 2)
        else:
            sides = [self._log_density(clean, side) for side in (0, 1)]
            plain = np.sum(sides[0] - sides[1], axis=1)
        return np.where(finite, plain, self.when_not_finite)

    def _log_density(self, transcripts: np.ndarray, side: int) -> np.ndarray:
        """Log density of each round's message under a mixture, up to a constant that both worlds share."""
        gaps = (transcripts[:, :, None, :] - self.atoms[side]) / self.deviation[:, None, :]
        return special.logsumexp(self.log_shares[side] - 0.5 * np.sum(gaps**2, axis=-1), axis=-1)


def strongest(scenes: Sequence[Scene]) -> Scene:
    """The scene whose worlds are farthest apart, in the noise of the whole transcript; ties go to the first."""
    apart = []
    for scene in scenes:
        quiet = [_clean(scene.draw(world, _quiet_trials(scene, _SKETCH_TRIALS), quiet=True)) for world in (0, 1)]
        shift = quiet[0].mean(axis=0) - quiet[1].mean(axis=0)
        noise = _clean(scene.draw(1, _SKETCH_TRIALS))
        weights = _fisher(shift, noise, max(float(np.abs(shift).max()), 1e-30))
        apart.append(float(np.sum(shift * weights)))
    return scenes[int(np.argmax(np.asarray(apart) >= 0.9 * max(apart)))]


def _quiet_trials(scene: Scene, most: int) -> int:
    return min(_QUIET_TRIALS, most) if scene.varied else _STILL_TRIALS


def _clean(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def fit(scene: Scene, trials: int) -> Model:
    """Learn the attack from ``trials`` transcripts of each world; none of them is used again."""
    noisy = [scene.draw(world, trials) for world in (0, 1)]
    broken = [float(np.mean(~np.isfinite(part).all(axis=(1, 2)))) for part in noisy]
    sign = _CERTAIN * float(np.sign(broken[0] - broken[1]))
    noisy = [_clean(part) for part in noisy]
    quiet = [_clean(scene.draw(world, _quiet_trials(scene, trials), quiet=True)) for world in (0, 1)]
    spread = max(float(np.abs(quiet[0].mean(axis=0) - quiet[1].mean(axis=0)).max()), float(np.ptp(quiet[0])), 1e-30)
    # What varies without noise is no noise.
    variance = np.mean([n.var(axis=0) - q.var(axis=0) for n, q in zip(noisy, quiet, strict=True)], axis=0)
    deviation = np.sqrt(np.maximum(variance, (1e-4 * spread) ** 2))
    (atoms_one, shares_one), (atoms_zero, shares_zero) = (_atoms(part, deviation) for part in quiet)
    most = max(shares_one.shape[1], shares_zero.shape[1])
    weights = None
    if most == 1 or most >= _MOST_ATOMS:
        shift = quiet[0].mean(axis=0) - quiet[1].mean(axis=0)
        raw = _fisher(shift, np.concatenate([part - part.mean(axis=0) for part in noisy]), spread)
        weights = raw / max(np.abs(raw).max(), 1e-300)
    return Model(weights, (atoms_one, atoms_zero), (shares_one, shares_zero), deviation, sign)


def _fisher(shift: np.ndarray, noise: np.ndarray, spread: float) -> np.ndarray:
    """Fisher's weights: the inverse covariance of the noise times the shift between the worlds."""
    covariance = np.atleast_2d(np.cov(noise.reshape(len(noise), -1), rowvar=False))
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + (1e-7 * spread) ** 2
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), shift.ravel())
    return weights.reshape(shift.shape)


def _atoms(quiet: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct noiseless messages of each round, and the logarithms of their shares."""
    values, logs = [], []
    for messages, noise in zip(quiet.swapaxes(0, 1), deviation, strict=True):
        # Counted from the least, so that rounding of what is one message cannot fall on two sides of a border.
        cells = np.floor((messages - messages.min(axis=0)) / (1e-2 * noise)).astype(np.int64)
        _, first, counts = np.unique(cells, axis=0, return_index=True, return_counts=True)
        kept = np.argsort(-counts)[:_MOST_ATOMS]
        values.append(messages[first[kept]])
        logs.append(np.log(counts[kept] / counts.sum()))
    most = max(len(v) for v in values)
    atoms = np.stack([np.concatenate([v, np.repeat(v[:1], most - len(v), axis=0)]) for v in values])
    padded = np.stack([np.concatenate([s, np.full(most - len(s), -1e30)]) for s in logs])
    return atoms, padded


@dataclass(frozen=True)
class Rule:
    """Say "found" where ``side * score > threshold``; side -1 looks for world zero instead."""

    side: int
    threshold: float

    def count(self, one: np.ndarray, zero: np.ndarray) -> Counts:
        """How often the rule says "found" in the world that it looks for, and in the other one."""
        hits = [int(np.sum(self.side * scores > self.threshold)) for scores in (one, zero)]
        hits = hits if self.side > 0 else hits[::-1]
        return Counts(hits[0], hits[1], len(one))


def best_rule(one: np.ndarray, zero: np.ndarray, trials: int, strength: Strength, *, calibrated: bool) -> Rule:
    """The most promising rule for ``trials`` trials of each world, from scores that must not be used again.

    A rule is worth what its measured rates prove at a strict confidence, which spares rare events that are luck, or
    what they promise for so many trials if the event is common. Where scores are log-likelihood ratios
    (``calibrated``), the rate of a rare event under one world is also the mean of the ratio under the other, which is
    far less noisy, so that rare events may promise too.
    """
    best, found = -1.0, Rule(1, 0.0)
    for side in (1, -1):
        hit, miss = (np.sort(side * scores) for scores in ((one, zero) if side > 0 else (zero, one)))
        tails = np.append(np.cumsum(np.exp(-hit[::-1]))[::-1], 0.0) / len(hit) if calibrated else None
        for cut in _cuts(hit, miss):
            first = int(np.searchsorted(hit, cut, "right"))
            hits, false = len(hit) - first, len(miss) - int(np.searchsorted(miss, cut, "right"))
            value = strength(Counts(hits, false, len(hit)), _STRICT)
            rate = false / len(miss) if tails is None else min(1.0, tails[first])
            if hits >= _FEWEST_HITS and (tails is not None or _COMMON <= rate <= 1 - _COMMON):
                promised = Counts(int(hits / len(hit) * trials), round(rate * trials), trials)
                value = max(value, strength(promised, 0.95))
            if value > best:
                best, found = value, Rule(side, float(cut))
    return found


def _cuts(hit: np.ndarray, miss: np.ndarray) -> np.ndarray:
    """Thresholds between scores, dense in the upper tail."""
    both = np.unique(np.concatenate([hit, miss]))
    levels = np.concatenate([np.linspace(0, 1, _CANDIDATES), 1 - np.geomspace(1e-6, 0.1, _CANDIDATES)])
    at = np.unique((levels * (len(both) - 1)).astype(int))
    return np.unique(np.append((both[at] + both[np.maximum(at - 1, 0)]) / 2, both[:1] - 1.0))
