"""What the page says of results of the earlier protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.common import Rows, grid_of
from experiments.earlier.mlp_curves import (
    Arm,
    counted,
    difference_table,
    draw_panels,
    error_table,
)
from experiments.folder import Data, table
from tacit.objectives import Objective, cnn, softmax
from tacit.plans.catalogue import paper_noise
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass, multi_pass_experiments

OBJECTIVE = Objective(cnn(), softmax())
ROUNDS, SEEDS, BATCH, LOCAL_STEPS, PHASE = (50, 100), 3, 100, 2, 2
CAPACITY, LOCAL_CAPACITY = 140, 79  # four deviations above the mean, priced as a truncation
EPSILONS = {50: (1.5, 6.0, 18.0), 100: (1.5, 18.0)}
MOVES = {1.5: (0.2, 0.4, 0.8, 1.6), 6.0: (0.4, 0.7, 1.2, 2.0), 18.0: (0.7, 1.2, 2.0, 3.2)}
"""Step size x clip norm: how far a clipped gradient moves the model."""
CLIP = 1.0
SLOPES = (1.0,)
STEPS = (0.05, 0.1, 0.2, 0.4)
"""Step sizes without privacy."""
LABELS = ("MB-SGD", "SPIDER", "Local SGD")


def arm_of(label: str, earlier: Rows | None = None, ours: bool = True) -> Arm:
    """An algorithm and its grid: 100 records a silo and round, Poisson batches with a physical limit, all priced."""
    batch = {"batch_size": BATCH, "sampling": "poisson", "capacity": CAPACITY}

    def points(epsilon: float) -> list[dict[str, float]]:
        if earlier is not None:
            [best] = [row["point"] for row in earlier if row["epsilon"] == epsilon]
            best = {name: value for name, value in best.items() if name != "noise_multiplier"}
            return [best]
        moves = MOVES[epsilon] if ours else tuple(move / 10 for move in MOVES[epsilon])
        if label == "Local SGD":
            return grid_of(clip_norm=(CLIP,), move=[move / LOCAL_STEPS for move in moves])
        if label == "SPIDER":
            return grid_of(clip_norm=(CLIP,), move=moves, difference_slope=SLOPES, difference_noise=(2.0,))
        return grid_of(clip_norm=(CLIP,), move=moves)

    if label == "Local SGD":
        small = {"batch_size": BATCH // LOCAL_STEPS, "sampling": "poisson", "capacity": LOCAL_CAPACITY}
        return Arm(label, "local-sgd", {"local_steps": LOCAL_STEPS, **small}, points)
    if label == "SPIDER":
        return Arm(label, "prox-spider", {"phase_length": PHASE, **batch}, points)
    return Arm(label, "mb-sgd", {"output": "last", **batch}, points, {"sampling": "poisson"})


def draw(folder: Path, data: Data) -> None:
    """A figure for each number of rounds, and the price of the theorem."""
    for rounds, curves in data["curves"].items():
        panel = {f"CIFAR-10, M=10, R={rounds}": (curves, data["non_private"][rounds])}
        draw_panels(folder / f"figure-r{rounds}.png", panel)
    title = "The same epsilon, priced by the theorem and here"
    draw_panels(folder / "pricing.png", {title: (data["pricing"], {})})


def words(data: Data) -> Data:
    """Tables, settings at the edge of the grid, and what the paper's constants are worth."""
    n, delta, gains = data["records"][0], data["delta"], data["less_mb_sgd"]
    return {
        "n": n,
        "batch": {"mean": BATCH, "most": CAPACITY, "local": BATCH // LOCAL_STEPS, "local_most": LOCAL_CAPACITY},
        "local_steps": LOCAL_STEPS,
        "phase": PHASE,
        "clip": CLIP,
        "difference_slope": SLOPES[0],
        "steps": STEPS,
        "tables": {
            r: {
                "errors": error_table(curves, data["non_private"][r]),
                "differences": difference_table("less MB-SGD, paired by seed", gains[r], EPSILONS[int(r)]),
            }
            for r, curves in data["curves"].items()
        },
        "grid": "; ".join(f"{e:g}: {', '.join(f'{m:g}' for m in moves)}" for e, moves in MOVES.items()),
        "edges": _edges(data["curves"][str(ROUNDS[0])]),
        "counted": counted([gain for rows in gains.values() for gain in rows["SPIDER"]]),
        "first": ROUNDS[0],
        "priced": error_table(data["pricing"], {}),
        "constants": _constants(n, delta),
        "failing": _failing(n, delta),
    }


def _edges(curves: dict[str, Rows]) -> list[str]:
    """Which private settings were the largest of the grid, so that larger ones might be better."""
    found = []
    for label in LABELS:
        scale = LOCAL_STEPS if label == "Local SGD" else 1
        rows = curves[label]
        at = [f"{r['epsilon']:g}" for r in rows if r["point"]["move"] * scale >= max(MOVES[r["epsilon"]]) * 0.999]
        found += [f"{label} (epsilon {', '.join(at)})"] if at else []
    return found


def _constants(records: int, delta: float) -> str:
    """Noise over ours, and what it is worth, for the theorem and for the paper's experiments, of minibatch SGD."""
    common: dict[str, Any] = {"records": records, "batch_size": BATCH, "delta": delta, "sampling": "poisson"}
    rows = []
    for rounds in ROUNDS:
        for epsilon in EPSILONS[rounds]:
            setting = Setting(num_rounds=rounds, epsilon=epsilon, **common)
            noises = (multi_pass(setting), multi_pass_experiments(setting))
            cells = [(f"{noise.ratio:.2f}", f"{noise.epsilon_certified:.3g}") for noise in noises]
            rows.append([rounds, f"{epsilon:g}", *cells[0], *cells[1]])
    header = ["R", "epsilon", "theorem's noise / ours", "is really", "experiments' noise / ours", "is really"]
    return table(header, rows)


def _failing(records: int, delta: float) -> str:
    """Where the theorem's conditions do not hold, so that its noise is used outside of it."""
    terms: dict[str, Any] = {"records": records, "num_rounds": ROUNDS[0], "batch_size": BATCH, "delta": delta}
    said = []
    for epsilon in EPSILONS[ROUNDS[0]]:
        found = paper_noise("mb-sgd", epsilon=epsilon, sampling="poisson", **terms)
        failed = [] if found is None else [condition.text for condition in found.conditions if not condition.holds]
        said += [f"{', '.join(failed)} (epsilon = {epsilon:g})"] if failed else []
    return "; ".join(said) or "none"
