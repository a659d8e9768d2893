"""Attacks on transcripts: a number for each transcript that is large where world one is likely.

An attack is fitted on trials of its own. Where a round has one noiseless message in each world, the likelihood ratio of
Gaussian noise is linear, and its weights come from the measured covariance of the noise over the whole transcript
(so noise that is used twice gives itself away). Where batches are random, the noiseless message is a mixture of a few
atoms in each world; rounds are independent, and the exact log-likelihood ratios of the mixtures are summed. What is
not finite is a sign too. Whether a model of the transcript is right only matters for the strength of an attack, never
for the validity of a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.audit.bounds import Counts
from tacit.audit.transcript import Scene

_QUIET_TRIALS = 8192
_SKETCH_TRIALS = 4096
_MOST_ATOMS = 48
_CERTAIN = 1e9
_CANDIDATES = 100
_STRICT = 0.9999
_FEWEST_HITS = 100
_COMMON = 0.2

Strength = Callable[[Counts, float], float]


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
        return np.asarray(_score(self._arrays(), jnp.asarray(transcripts)), np.float64)

    def _arrays(self) -> Any:
        return self.weights, self.atoms, self.log_shares, self.deviation, self.when_not_finite


@jax.jit
def _score(model: Any, transcripts: Array) -> Array:
    weights, atoms, log_shares, deviation, when_not_finite = model
    finite = jnp.all(jnp.isfinite(transcripts), axis=(1, 2))
    clean = jnp.where(jnp.isfinite(transcripts), transcripts, 0.0)
    if weights is not None:
        plain = jnp.tensordot(clean - atoms[1][:, 0], weights, 2)
    else:
        sides = [_log_density(clean, a, s, deviation) for a, s in zip(atoms, log_shares, strict=True)]
        plain = jnp.sum(sides[0] - sides[1], axis=1)
    return jnp.where(finite, plain, when_not_finite)


def _log_density(transcripts: Array, atoms: Array, log_shares: Array, deviation: Array) -> Array:
    """Log density of each round's message under a mixture, up to a constant that both worlds share."""
    gaps = (transcripts[:, :, None, :] - atoms) / deviation[:, None, :]
    return jax.nn.logsumexp(log_shares - 0.5 * jnp.sum(gaps**2, axis=-1), axis=-1)


def strongest(scenes: Sequence[Scene], key: Array) -> Scene:
    """The scene whose worlds are farthest apart, in the noise of the whole transcript; ties go to the first."""
    apart = []
    for scene in scenes:
        trials = min(_SKETCH_TRIALS, scene.chunk)
        still = [scene.draw(key, world, trials, loudness=0.0) for world in (0, 1)]
        noise = _clean(scene.draw(key, 1, trials) - still[1])
        shift = (_clean(still[0]) - _clean(still[1])).mean(axis=0)
        apart.append(float(np.sum(shift * _fisher(shift, noise, max(float(np.abs(shift).max()), 1e-30)))))
    return scenes[int(np.argmax(np.asarray(apart) >= 0.9 * max(apart)))]


def _clean(values: np.ndarray) -> np.ndarray:
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def fit(scene: Scene, key: Array, trials: int) -> Model:
    """Learn the attack from ``trials`` transcripts of each world; none of them is used again."""
    key_quiet, key_noisy = jax.random.split(key)
    quiet = [scene.draw(key_quiet, world, min(_QUIET_TRIALS, scene.chunk), loudness=0.0) for world in (0, 1)]
    noisy = [scene.draw(key_noisy, world, trials) for world in (0, 1)]
    still = scene.draw(key_noisy, 1, trials, loudness=0.0)
    noise = _clean(noisy[1] - still)
    broken = [float(np.mean(~np.isfinite(part).all(axis=(1, 2)))) for part in noisy]
    sign = _CERTAIN * float(np.sign(broken[0] - broken[1]))
    quiet = [_clean(part) for part in quiet]
    spread = max(float(np.abs(quiet[0] - quiet[1]).max()), float(np.ptp(quiet[0])), 1e-30)
    deviation = np.maximum(noise.std(axis=0), 1e-4 * spread)
    (atoms_one, shares_one), (atoms_zero, shares_zero) = (_atoms(part, deviation) for part in quiet)
    number = max(shares_one.shape[1], shares_zero.shape[1])
    weights = None
    if number == 1 or number >= _MOST_ATOMS:
        means = [part.mean(axis=0, dtype=np.float64) for part in quiet]
        raw = _fisher(means[0] - means[1], noise, spread)
        weights = (raw / max(np.abs(raw).max(), 1e-300)).astype(np.float32)
    return Model(weights, (atoms_one, atoms_zero), (shares_one, shares_zero), deviation, sign)


def _fisher(shift: np.ndarray, noise: np.ndarray, spread: float) -> np.ndarray:
    """Fisher's weights: the inverse covariance of the noise times the shift between the worlds."""
    flat = noise.reshape(len(noise), -1).astype(np.float64)
    covariance = np.atleast_2d(np.cov(flat, rowvar=False))
    ridge = 1e-9 * np.trace(covariance) / len(covariance) + (1e-7 * spread) ** 2
    weights = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), shift.ravel().astype(np.float64))
    return weights.reshape(shift.shape)


def _atoms(quiet: np.ndarray, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct noiseless messages of each round, and the logarithms of their shares."""
    values, logs = [], []
    for number in range(quiet.shape[1]):
        # Counted from the least, so that rounding of what is one message cannot fall on two sides of a border.
        above = quiet[:, number] - quiet[:, number].min(axis=0)
        cells = np.floor(above / (1e-2 * deviation[number])).astype(np.int64)
        _, first, counts = np.unique(cells, axis=0, return_index=True, return_counts=True)
        kept = np.argsort(-counts)[:_MOST_ATOMS]
        values.append(quiet[first[kept], number])
        logs.append(np.log(counts[kept] / counts.sum()))
    most = max(len(v) for v in values)
    atoms = np.stack([np.concatenate([v, np.repeat(v[:1], most - len(v), axis=0)]) for v in values])
    padded = np.stack([np.concatenate([s, np.full(most - len(s), -1e30)]) for s in logs])
    return atoms.astype(np.float32), padded.astype(np.float32)


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
