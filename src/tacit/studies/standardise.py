"""Standardisation by private statistics: each silo releases them once, inside its budget, before training.

After the release everything is post-processing: the map of features is fixed and public, and treats every record by
itself. Only training records enter the statistics; validation and test records are mapped by them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Terms
from tacit.algorithms.column_statistics import column_statistics
from tacit.data import Federation, SiloData, Step
from tacit.data.encode import Curves, Norm, norm_step
from tacit.plans.spec import PreprocessingSection, Study, StudyError
from tacit.privacy import Event, calibrate
from tacit.privacy.plan import events_of
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import Participation

_LEAST_VARIANCE = 0.01
_STREAM = 7919  # keeps the noise of statistics apart from that of training


def places_of(section: PreprocessingSection, federation: Federation) -> tuple[int, ...]:
    """The coordinates that the section's columns became."""
    names = federation.feature_names
    if not names:
        raise StudyError(f"preprocessing: {federation.name} has no named features to standardise; leave it out.")
    strange = [column for column in section.columns if column not in names]
    if strange:
        raise StudyError(
            f"preprocessing.columns: {federation.name} has no feature {strange[0]!r}; name some of {', '.join(names)}."
        )
    return tuple(names.index(column) for column in section.columns)


def statistics_of(section: PreprocessingSection, places: Sequence[int], noise: np.ndarray | float) -> Algorithm:
    """The round in which silos release their statistics."""
    terms = Terms(clip_norm=None, noise_multiplier=noise, batch_size=None, sampling="full")
    return column_statistics(terms, columns=places, statistic=section.standardise, bins=section.bins)


def statistics_events(study: Study, federation: Federation) -> list[tuple[Event, ...]]:
    """What each silo releases before training: its statistics, at the share of its epsilon that they may cost."""
    section, privacy = study.preprocessing, study.privacy
    if section is None:
        return []
    epsilons = privacy.epsilon if isinstance(privacy.epsilon, tuple) else (privacy.epsilon,) * len(federation.silos)
    unit = statistics_of(section, places_of(section, federation), 1.0)
    calibrated = []
    for silo_index, (silo, epsilon) in enumerate(zip(federation.silos, epsilons, strict=True)):
        assert epsilon is not None
        events = events_of(unit, silo_index=silo_index, silos=len(federation.silos), records=len(silo.train["y"]))
        calibrated.append(calibrate(events, epsilon=section.share * epsilon, delta=privacy.delta))
    return calibrated


def standardised(
    study: Study, federation: Federation, noise: Sequence[float], who: Participation, seed: int
) -> Federation:
    """The federation with features mapped by statistics that its silos released with this noise."""
    section = study.preprocessing
    if section is None:
        return federation
    places = places_of(section, federation)
    # Rounded up to float32, which is what the silo computes with.
    multipliers = np.nextafter(np.asarray(noise, np.float32), np.float32(np.inf))
    algorithm = statistics_of(section, places, multipliers)
    silos = enrol([{k: silo.train[k] for k in ("x", "y")} for silo in federation.silos])
    key = jax.random.fold_in(jax.random.key(seed), _STREAM)
    released = np.asarray(simulate(algorithm, jnp.zeros(()), silos, key=key, who=who, noise="each").params)
    curves = [_curve(section, row) for row in released.astype(np.float64)]
    stages = (Curves(places, *(np.stack(part) for part in zip(*curves, strict=True))), Norm(section.norm))

    def apply(records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = records["x"]
        for stage in stages:
            x = stage.apply(x)
        return {**records, "x": x}

    changed = tuple(
        SiloData(silo.name, apply(silo.train), apply(silo.validation), apply(silo.test)) for silo in federation.silos
    )
    columns = ", ".join(section.columns)
    text = f"{columns} by {section.standardise} that each silo released with noise, priced with training."
    steps = (*federation.steps, Step("private standardisation", False, text, priced=True), norm_step(section.norm))
    before = federation.encoding
    whole = before and dataclasses.replace(before, stages=(*before.stages, *stages), steps=steps, norm=section.norm)
    return dataclasses.replace(federation, silos=changed, feature_norm=section.norm, steps=steps, encoding=whole)


def _curve(section: PreprocessingSection, released: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The map of one column from its noisy statistics: knots, and the heights there."""
    if section.standardise == "moments":
        # Noisy means of v and v^2 - 1.
        mean = float(np.clip(released[0], -1.0, 1.0))
        spread = float(np.sqrt(max(released[1] + 1.0 - mean**2, _LEAST_VARIANCE)))
        return np.array([mean - 3 * spread, mean + 3 * spread]), np.array([-1.0, 1.0])
    edges = np.linspace(-1.0, 1.0, section.bins + 1)
    shares = released + 1 / section.bins if section.standardise == "histogram" else shares_of_tree(released)
    below = cumulative(shares)
    if section.standardise == "histogram":
        return edges, 2 * below - 1
    low, high = np.interp(section.quantiles, below, edges).tolist()
    high = max(high, low + 2 / section.bins)
    return np.array([low, high]), np.array([-1.0, 1.0])


def shares_of_tree(released: np.ndarray) -> np.ndarray:
    """The share of records in each bin, from the noisy differences between left and right halves.

    >>> shares_of_tree(np.array([0.5, 0.25, 0.25])).tolist()
    [0.5, 0.25, 0.25, 0.0]
    """
    shares = np.ones(1)
    while len(shares) <= len(released):
        # The differences of one level follow those of the level above: 1, 2, 4 ...
        difference = released[len(shares) - 1 : 2 * len(shares) - 1]
        left = np.clip((shares + difference) / 2, 0.0, shares)
        shares = np.stack([left, shares - left], axis=1).reshape(-1)
    return shares


def cumulative(shares: np.ndarray) -> np.ndarray:
    """The share of records below each edge: from 0 to 1, never falling, whatever the noise."""
    positive = np.maximum(shares, 0.0) + 1e-6
    return np.concatenate([[0.0], np.cumsum(positive) / positive.sum()])
