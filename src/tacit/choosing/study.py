"""From a candidate to a study, as a tree of plain values: the theorem's parameters, the budget, and records to run on.

Where no study of one's own is given the records are made up (`data.name = "synthetic"`) to the sizes of the situation:
a rehearsal, to be replaced by a folder of CSV files (`tacit init`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit import geometry
from tacit.choosing.candidates import Candidate
from tacit.choosing.situation import Situation
from tacit.plans.catalogue import find

_TERMS = {"clip_norm", "batch_size", "sampling"}  # those that a study sets beside the parameters
_HIDDEN = 8


def study_for(situation: Situation, best: Candidate, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The study of a candidate; ``own`` is a study whose records and model are kept.

    >>> from tacit.choosing import candidates, winner
    >>> s = Situation(convex=True, smoothness=1, sizes=(100, 200), dimension=5, epsilon=1)
    >>> study_for(s, winner(candidates(s)))["data"]["name"]
    'synthetic'
    """
    base: dict[str, Any] = dict(own or _made_up(situation))
    objective = dict(base.get("objective", {}))
    if situation.convex and _is_free(objective.get("regulariser", "zero")):
        objective["regulariser"] = _ball(situation)
    if best.smoothing is not None:
        objective["smoothness"] = float(best.smoothing)
    privacy = {**base.get("privacy", {}), "epsilon": situation.epsilon, "delta": situation.delta}
    privacy.pop("noise_multiplier", None)
    run = {"seeds": 1, **base.get("run", {})}
    if situation.participants is not None:
        run["participants"] = situation.participants
    if situation.fairness:
        privacy["protects"] = "sensitive-attribute"
        run["alone"] = False
    kept: dict[str, Any] = {key: base[key] for key in ("data", "partition", "preprocessing") if key in base}
    return {
        "format": 1,
        "name": base.get("name", best.algorithm),
        "title": base.get("title", f"{best.algorithm}: {best.source}"),
        **kept,
        "objective": objective,
        "algorithm": _algorithm(best),
        **_baseline(situation, best),
        "privacy": privacy,
        "run": run,
    }


def _algorithm(best: Candidate) -> dict[str, Any]:
    """The algorithm with its theorem's parameters; noise is left to the accountant."""
    accepted = {*find(best.algorithm).parameters, *_TERMS}
    given = {name: plain(value) for name, value in best.parameters.items() if value is not None and name in accepted}
    return {"name": best.algorithm, "channel": best.channel, **given}


def _baseline(s: Situation, best: Candidate) -> dict[str, Any]:
    """A theorem's step is short because of noise; training without it, to compare with, takes the step of smooth loss.

    Without this the baseline would stop far from the optimum, and privacy would seem to cost nothing.
    """
    own, free = best.parameters.get("step_size"), 0.0 if s.smoothness is None else 0.5 / s.smoothness
    if not isinstance(own, int | float) or own >= free:
        return {}
    return {"baseline": {"step_size": plain(free)}}


def plain(value: Any) -> Any:
    """A number, text or list that TOML can hold, numbers to six digits."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in np.asarray(value).tolist()]
    if isinstance(value, bool | str | int):
        return value
    if isinstance(value, np.integer):
        return int(value)
    return float(f"{float(value):.6g}")


def _is_free(regulariser: Any) -> bool:
    """Whether a regulariser may be replaced by the theorem's: there is none, or it is a ball or squared norm."""
    return all(term["kind"] in ("zero", "l2-ball", "squared-l2") for term in geometry.terms(regulariser))


def _ball(s: Situation) -> str:
    ball = f"l2-ball:{s.radius:g}"
    return f"squared-l2:{s.strong_convexity:g}+{ball}" if s.strong_convexity > 0 else ball


def _made_up(s: Situation) -> dict[str, Any]:
    """Records and a model of the situation's sizes; three tenths of each silo are for validation and test."""
    features = max(1, s.dimension - 1)
    objective: dict[str, Any] = {"model": "linear", "loss": "logistic" if s.smoothness is not None else "hinge"}
    if not s.convex:
        features = max(1, round((s.dimension - 1) / _HIDDEN) - 2)
        objective |= {"model": "mlp", "hidden": [_HIDDEN]}
    options: dict[str, Any] = {
        # The most records of which seven tenths, rounded down, are as many as train.
        "sizes": [-(-10 * (size + 1) // 7) - 1 for size in s.sizes],
        "features": features,
        "heterogeneity": 0.5 if s.heterogeneous else 0.0,
    }
    if s.fairness:
        options["groups"] = 2
    return {"data": {"name": "synthetic", "options": options}, "objective": objective}
