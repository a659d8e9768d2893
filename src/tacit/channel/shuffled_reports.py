"""Shuffled reports: one for each record, in an order that says nothing, from the terms all agree on to the mean of all.

    terms     `report_terms`     epsilon_0 and the dimension of a stream
    encode    `encoded`          a seed, which stands for a direction, and a sign, in nine bytes
    decode    `total_of_reports`, `mean_of_reports`

Reports are made by the silo (`tacit.silo.local_reports`), and by the simulator in float32.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from tacit.algorithm import PerBlock
from tacit.channel.direct import shaped
from tacit.privacy.randomisers import direction, duchi_scale

REPORT_BYTES = 9
MOST_LOCAL = 30.0
"""The largest epsilon_0 in use; a larger one becomes this one, which is more private."""

_REPORT = struct.Struct(">QB")


class ReportTerms(NamedTuple):
    """What all silos of a round agree on for one stream: epsilon_0 and the number of coordinates."""

    local_epsilon: float
    dimension: int


def report_terms(noise_multiplier: float, dimension: int) -> ReportTerms:
    """The terms of a stream whose noise multiplier is the reciprocal of epsilon_0."""
    return ReportTerms(min(1.0 / noise_multiplier, MOST_LOCAL), dimension)


def encoded(seed: int, sign: bool) -> bytes:
    """A report as it travels."""
    return _REPORT.pack(seed, int(sign))


def total_of_reports(reports: Sequence[bytes], terms: ReportTerms) -> Float[np.ndarray, " dimension"]:
    """The sum of vectors of norm at most one that the reports of a stream stand for; nonsense counts as zero."""
    total = np.zeros(terms.dimension)
    for report in reports:
        seed, sign = _REPORT.unpack(report) if len(report) == REPORT_BYTES else (0, -1)
        if sign in (0, 1):
            total += (1 if sign else -1) * direction(seed, terms.dimension)
    return duchi_scale(terms.dimension, terms.local_epsilon) * total


def mean_of_reports(
    reports: Mapping[str, Sequence[bytes]],
    bounds: PerBlock,
    shape: Any,
    terms: Mapping[str, ReportTerms],
    *,
    each: float,
) -> Any:
    """The mean that reports stand for, by the clips ``bounds``; a record of weight one counts ``each``."""
    means = {}
    for name, own in terms.items():
        mean = (bounds[name] if name else bounds) * total_of_reports(reports[name], own) * each
        means[name] = shaped(shape[name] if name else shape, mean)
    return means.get("", means)
