"""Settings that a study may start from, by what is public of its records; see `tacit.plans.defaults`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.plans.assemble import Facts, problem_of
from tacit.plans.defaults import Settings, defaults_of
from tacit.plans.spec import Study
from tacit.privacy import Budget
from tacit.studies.bound import left_for_training


def settings_for(study: Study, facts: Facts, records: Sequence[int]) -> Settings:
    """The defaults of a study whose silos train on so many records; its own steps and clips are not looked at."""
    privacy, run = study.privacy, study.run
    epsilons = privacy.epsilon if isinstance(privacy.epsilon, tuple) else (privacy.epsilon,)
    left = [left_for_training(study.preprocessing, e, privacy.delta) for e in epsilons if e is not None]
    budget = None
    if left:
        counted_on: dict[str, Any] = {"honest": run.honest, "colluding": study.pairwise.colluding}
        budget = Budget(epsilon=tuple(left) if len(left) > 1 else left[0], delta=privacy.delta, **counted_on)
    return defaults_of(
        problem_of(study, facts),
        records,
        budget,
        feature_norm=facts.feature_norm if study.preprocessing is None else study.preprocessing.norm,
        channel=study.algorithm.channel,
        weights=records if run.weights == "records" else None,
        participants=run.participants[0] if isinstance(run.participants, tuple) else run.participants,
    )
