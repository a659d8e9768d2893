"""How far an answer may lie from what a server knows, by docs/protocol.md: the clip of its round, and nine deviations.

A release is a mean of clipped contributions with noise: no coordinate is beyond the clip and nine deviations, and its
norm is not beyond the clip and the noise's norm.

Of local steps a server sees only where they end, so that is what is judged: how far the end point lies from where the
broadcast alone leads, against what all steps that read records are allowed together, each its own clip and nine
deviations. A step that goes too far is seen only if the others do not fall as short. Where one step alone reads records
it is judged as strictly as any message: `local-sgd` is played with one local step, and the others, whose first reads
none, with two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.questions import ONCE, Table, ratios

DEVIATIONS = 9.0
_ROUNDING = 1e-3  # of what is allowed: grids, float32 and norms are rounded
_ULP = 2.0**-23
_TINY = 2.0**-126  # smaller numbers may be taken for zero
_PAIRED = ("prox-svrg", "pl-svrg", "prox-spider", "alternate-spider")
_MOMENTUM = ("ce-psgm", "ce-psgm-fg", "mb-psgm", "mb-psgm-fg")
_DIFFERENCES = ("diff2-gd", "diff2-bvr-lsgd")
UNEVEN = ("dp-ftrl",)
"""Algorithms whose noise differs from round to round; only a bound on it is described."""
_ALONE = {"mu2-sgd": "increment", "sgda": "step", "fedfdp": "step", "quantile-clip": "step", "local-sgd": "local"}
_TOLD = 2.0**-60, 2.0**60  # clips that a silo uses
REFUSED = ("steffle", "lagrangian-dual")  # they read a sensitive attribute, which a daemon's records do not have


@dataclass(frozen=True)
class Block:
    """A part of a message that is one release: where it lies, how far the clip and the noise can carry it."""

    centre: np.ndarray  # one flat vector; zeros but for local steps
    clip: float  # in norm, and so in each coordinate
    deviations: float  # nine of them, in each coordinate
    noise_norm: float  # of the noise vector, at as small a chance
    slack: np.ndarray | float = 0.0  # rounding of float32 about a centre that is large
    shrinks: bool = False  # a regulariser may have moved coordinates towards zero

    def ratio(self, said: np.ndarray) -> float:
        """How far the message went, over how far it may go; infinite if a coordinate is not finite."""
        known = np.isfinite(self.centre) & (np.abs(self.centre) < 3e38)
        said, centre = said.astype(np.float64)[known], self.centre[known]
        far = np.abs(said) - np.abs(centre) if self.shrinks else np.abs(said - centre)
        far = np.maximum(far - (self.slack[known] if isinstance(self.slack, np.ndarray) else self.slack), 0.0)
        if not np.all(np.isfinite(far)):
            return math.inf
        coordinate = _over(float(np.max(far, initial=0.0)), self.clip + self.deviations)
        return max(coordinate, _over(float(np.linalg.norm(far)), self.clip + self.noise_norm))


def _over(far: float, allowed: float) -> float:
    if far == 0.0:
        return 0.0
    return far / (allowed * (1.0 + _ROUNDING)) if allowed > 0.0 else math.inf


def kind_of(algorithm: dict[str, Any], number: int) -> str:
    """What kind of round a round is, for a consortium of one silo; of algorithms that are not named, a gradient."""
    name, phase = algorithm["name"], algorithm.get("phase_length")
    if name == "warm-spider":
        warm = algorithm["warm_rounds"]
        return "warm" if number < warm else "difference" if (number - warm) % phase else "gradient"
    if name in ONCE:
        return "moments" if name == "ridge" else name
    if name == "preconditioned-sgd":
        return "moments" if number < algorithm.get("moment_rounds", 2) else "gradient"
    if name in _PAIRED:
        fresh = "gradient" if name.endswith("spider") else "anchor"
        return fresh if number % (phase or 2) == 0 else "difference"
    if name in (*_MOMENTUM, *_DIFFERENCES):
        turns = algorithm.get("local_steps", 1) > 1
        if turns and number % 2:
            return "local"
        step = number // 2 if turns else number
        return "gradient" if step == 0 or (phase and step % phase == 0) else "estimate"
    if name == "localised-mb-sgd" and algorithm.get("sampling") == "one-pass":
        phases = np.array_split(np.arange(algorithm["num_rounds"]), algorithm.get("phases", 2))
        return next(f"phase_{i + 1}" for i, own in enumerate(phases) if number in own)
    return _ALONE.get(name, "gradient")


def rounds_of(algorithm: dict[str, Any]) -> int:
    """How many rounds a study has: local rounds of one silo in turn count too."""
    if algorithm["name"] in ONCE:
        return 1
    in_turn = algorithm["name"] in (*_MOMENTUM, *_DIFFERENCES) and algorithm.get("local_steps", 1) > 1
    return algorithm["num_rounds"] * (2 if in_turn else 1)


def kinds_of(algorithm: dict[str, Any]) -> set[str]:
    """The kinds of all rounds of a study; a silo's consent must name the same."""
    return {kind_of(algorithm, number) for number in range(rounds_of(algorithm))}


def broadcast_of(algorithm: dict[str, Any], kind: str) -> tuple[int, int]:
    """How many points (lists of the model's arrays) a broadcast has, and how many numbers after them."""
    if algorithm["name"] in ONCE:
        return int(kind == "validation"), 0
    if kind == "local":
        return (1 if algorithm["name"] == "local-sgd" else 3), 0
    if kind.startswith("phase_") or kind == "warm":
        return 1, 0
    if algorithm["name"] == "preconditioned-sgd":
        return 2, 0
    points = {"gradient": 1, "anchor": 1, "difference": 2, "estimate": 2, "increment": 2, "step": 1}[kind]
    return points, int(kind in ("increment", "step"))


def blocks_of(algorithm: dict[str, Any], kind: str, multipliers: dict[str, float], facts: Facts) -> list[Block]:
    """The releases of one round's message, in order."""
    if algorithm["name"] in ONCE:
        return list(_asked(algorithm, multipliers[kind], facts))
    name, clip = algorithm["name"], algorithm["clip_norm"]
    if kind == "local":
        return [_steps(algorithm, multipliers["local"], facts)]
    far = _difference_clip(algorithm, facts)
    size = facts.points[0].size
    if name == "sgda":
        share, dual = algorithm.get("dual_share", 0.5), algorithm.get("dual_clip_norm", clip)
        split = [(1, dual, share), (size, clip, 1.0 - share)]
    elif name == "fedfdp":
        share = algorithm.get("loss_share", 0.1)
        split = [(size, clip, 1.0 - share), (1, _loss_clip(algorithm, facts.numbers[0]), share)]
    elif name == "quantile-clip":
        share, told = algorithm.get("count_share", 0.05), facts.numbers[0]
        split = [(1, 0.5, share), (size, _used(told), 1.0 - share)]
    elif kind == "moments":
        # Rows that are not negative have noise for sqrt(2) clips, not two.
        less = 1.0 if algorithm.get("sampling") == "poisson" else math.sqrt(0.5)
        return [_mean(algorithm, kind, facts, size, _used(clip**2), less * multipliers[kind])]
    elif kind == "estimate" and name in _MOMENTUM:
        # The consent tells the multiplier of both parts together, 1/z^2 = 1/z_1^2 + 1/z_2^2.
        z = multipliers["gradient"]
        noise = (multipliers[kind] ** -2 - z**-2) ** -0.5
        return [_mean(algorithm, kind, facts, size, c, m) for c, m in ((far, noise), (clip, z))]
    else:
        c = far if kind in ("difference", "estimate") else clip
        # A running sum is told by its increments, each of which has the noise of two sums in it.
        twice = math.sqrt(2.0) if kind == "increment" else 1.0
        if name in UNEVEN:
            twice = 2.0 * math.sqrt(1.0 + math.log(algorithm["num_rounds"]))
        return [_mean(algorithm, kind, facts, size, c, twice * multipliers[kind])]
    return [_mean(algorithm, kind, facts, n, c, multipliers[kind] / math.sqrt(s)) for n, c, s in split]


def _asked(algorithm: dict[str, Any], multiplier: float, facts: Facts) -> Iterator[Block]:
    """Rows that are not negative, and moments of records: replacing one moves a sum by sqrt(2) clips."""
    z = math.sqrt(0.5) * multiplier
    if algorithm["name"] == "ridge":
        yield _mean({}, "", facts, (facts.features + 2) ** 2, 1.5 * algorithm["clip_norm"] ** 2, z)
    if "own" in algorithm.get("asked", {}):
        # Whether the silo has a model of its own of that study: it has none.
        yield Block(np.zeros(1), 0.0, 0.0, 0.0)
    for table, ratio in zip(facts.tables, ratios(facts.tables), strict=True):
        yield _mean({}, "", facts, table.cells, 1.0, ratio * z)


def _used(clip: float) -> float:
    return clip if _TOLD[0] <= clip <= _TOLD[1] else 0.0


@dataclass(frozen=True)
class Facts:
    """What a bound needs of a round: how many records are read, and the broadcast, each point as one vector.

    And of a question the tables that are asked for, or how many features there are.
    """

    records: int
    points: list[np.ndarray]
    numbers: list[float]
    shrinks: bool  # the objective has a regulariser, whose proximal map moves coordinates towards zero
    tables: list[Table] = field(default_factory=list)
    features: int = 0


def _mean(algorithm: dict[str, Any], kind: str, facts: Facts, size: int, clip: float, multiplier: float) -> Block:
    batch, most = _batch(algorithm, kind, facts.records)
    sigma = multiplier * 2.0 * clip / batch
    return Block(np.zeros(size), clip * most, DEVIATIONS * sigma, sigma * (math.sqrt(size) + DEVIATIONS))


def _batch(algorithm: dict[str, Any], kind: str, records: int) -> tuple[int, float]:
    """What a sum is divided by, and how many times the clip its mean may be: a Poisson batch may be larger."""
    special = {"difference": "difference", "local": "local", "gradient": "first"}.get(kind, "")
    sampling = algorithm.get("sampling", "full")
    if kind == "difference":
        sampling = algorithm.get("difference_sampling", sampling)
    batch = algorithm.get(f"{special}_batch_size", algorithm.get("batch_size", records))
    if kind.startswith("phase_"):
        batch >>= int(kind.removeprefix("phase_")) - 1
    return batch, records / batch if sampling == "poisson" else 1.0


def _difference_clip(algorithm: dict[str, Any], facts: Facts) -> float:
    """min(2C, slope x distance of the two points), and 2C where there is no slope."""
    cap, slope = 2.0 * algorithm["clip_norm"], algorithm.get("difference_slope")
    if slope is None or len(facts.points) < 2:
        return cap
    with np.errstate(all="ignore"):
        distance = float(np.linalg.norm(facts.points[0] - facts.points[1]))
    return min(cap, slope * distance) if math.isfinite(distance) else cap


def _loss_clip(algorithm: dict[str, Any], mean: float) -> float:
    """Losses are clipped to twice the mean loss that the server tells, between a tenth of loss_clip and all of it."""
    most = algorithm.get("loss_clip", 1.0)
    return min(max(2.0 * mean, 0.1 * most), most) if math.isfinite(mean) else most


def _steps(algorithm: dict[str, Any], multiplier: float, facts: Facts) -> Block:
    """Where local steps end: at each step's own clip and noise from where the broadcast alone leads."""
    steps, eta, start = algorithm["local_steps"], algorithm["step_size"], facts.points[0]
    batch, most = _batch(algorithm, "local", facts.records)
    root = math.sqrt(start.size) + DEVIATIONS
    if algorithm["name"] == "local-sgd":
        clip, sigma = algorithm["clip_norm"], multiplier * 2.0 * algorithm["clip_norm"] / batch
        reach, noise, norm = (steps * eta * part for part in (clip * most, DEVIATIONS * sigma, root * sigma))
        return Block(start, reach, noise, norm, _slack(start, steps, reach + noise), facts.shrinks)
    with np.errstate(all="ignore"):
        along = facts.points[2]
        centre, large = start - steps * eta * along, np.abs(start) + steps * eta * np.abs(along)
        speed, size = float(np.linalg.norm(along)), float(np.linalg.norm(start))
    reach = noise = norm = 0.0
    for left in range(steps - 1, 0, -1):
        moved = eta * speed + _ULP * (size + steps * eta * speed) + _TINY * root
        slope = algorithm.get("local_slope", algorithm["difference_slope"])
        clip = (
            min(2.0 * algorithm["clip_norm"], slope * moved) if math.isfinite(moved) else 2.0 * algorithm["clip_norm"]
        )
        sigma = multiplier * 2.0 * clip / batch
        reach, noise, norm = (
            total + eta * left * part
            for total, part in ((reach, clip * most), (noise, DEVIATIONS * sigma), (norm, root * sigma))
        )
        speed += clip * most + root * sigma
    return Block(centre, reach, noise, norm, _slack(large, steps, reach + noise))


def _slack(large: np.ndarray, steps: int, reach: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return 4.0 * (steps + 2) * (_ULP * (np.abs(large) + reach) + _TINY)
