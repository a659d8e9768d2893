"""Lasso and group lasso: the true support, recovered privately; from which epsilon on.

``python -m experiments.support_recovery`` writes ``results/support-recovery``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Rows, epsilon_axis, grid_of
from experiments.folder import Data, Experiment, Finding, save, table
from experiments.sparse_regression import DELTA, Sizes, builder, regression, trained
from tacit import geometry
from tacit.algorithm import Channel
from tacit.geometry import Regulariser

SIZES, DRAWS, TUNING = Sizes(), 40, 10
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
STRENGTHS, CLIPS, ROUNDS = (0.004, 0.006, 0.008), (0.2, 0.4), (4, 8)
TUNED_AT = {"direct": 2.0, "shuffled-sum": 0.5}
NEEDED = 0.95
PENALTIES = ("lasso", "group lasso")
CHANNELS: dict[Channel, tuple[str, str, str]] = {
    "direct": ("ISRL-DP", "ISRL-DP (direct)", "^:"),
    "shuffled-sum": ("SDP", "SDP (shuffled sum)", "o-"),
}
"""What each guarantees, in short and in full, and its line."""


def compute(_: Any) -> Data:
    """Both penalties through both channels."""
    rows: Rows = []
    for penalty in PENALTIES:
        for channel in CHANNELS:
            terms = _tuned(penalty, channel)
            rows += recovery(SIZES, penalty, channel, range(DRAWS), EPSILONS, **terms)
            print(penalty, channel, terms, [row["exact"] for row in rows[-len(EPSILONS) :]], flush=True)
    return {"delta": DELTA, "sizes": vars(SIZES), "draws": DRAWS, "rows": rows}


def penalty_of(name: str, strength: float, sizes: Sizes) -> Regulariser:
    """The penalty of this name; a group's is scaled by nothing."""
    return geometry.l1(strength) if name == "lasso" else geometry.group_lasso(strength, sizes.groups)


def recovery(
    sizes: Sizes,
    penalty: str,
    channel: Channel,
    draws: Sequence[int],
    epsilons: Sequence[float],
    *,
    strength: float,
    clip_norm: float,
    num_rounds: int,
) -> Rows:
    """How often the coefficients that are not zero are exactly the true ones, by epsilon.

    Noisy proximal minibatch SGD with full batches and a step of 5/6 of the inverse smoothness of the mean loss.
    """
    problem, seeds = regression(sizes, penalty_of(penalty, strength, sizes), draws)
    terms = {"step_size": sizes.features / 1.2, "clip_norm": clip_norm, "num_rounds": num_rounds, "output": "last"}
    params = trained(builder("mb-sgd", problem, channel, **terms), seeds, sizes, epsilons)
    chosen = np.asarray(params["linear"]["w"])[..., 0] != 0
    true = sizes.truth != 0
    return [
        {
            "penalty": penalty,
            "channel": channel,
            "epsilon": epsilon,
            "exact": float((found == true).all(axis=1).mean()),
            "missed": float((~found & true).sum(axis=1).mean()),
            "false": float((found & ~true).sum(axis=1).mean()),
            "strength": strength,
            "clip_norm": clip_norm,
            "num_rounds": num_rounds,
        }
        for epsilon, found in zip(epsilons, chosen.swapaxes(0, 1), strict=True)
    ]


def _tuned(penalty: str, channel: Channel) -> dict[str, Any]:
    """The terms of the fewest mistakes at one epsilon, on draws that are used for nothing else."""
    best: list[tuple[float, dict[str, Any]]] = []
    for terms in grid_of(strength=STRENGTHS, clip_norm=CLIPS, num_rounds=ROUNDS):
        draws = range(10_000, 10_000 + TUNING)
        [row] = recovery(SIZES, penalty, channel, draws, (TUNED_AT[channel],), **terms)
        best.append((row["missed"] + row["false"], terms))
    return min(best, key=lambda one: one[0])[1]


def _own(rows: Rows, penalty: str, channel: str) -> Rows:
    return [row for row in rows if row["penalty"] == penalty and row["channel"] == channel]


def draw(folder: Path, data: Data) -> None:
    """How often the support is exact, by epsilon."""
    figure, axis = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
    for colour, penalty in enumerate(PENALTIES):
        for channel, (short, _, style) in CHANNELS.items():
            own = _own(data["rows"], penalty, channel)
            at, values = [r["epsilon"] for r in own], [r["exact"] for r in own]
            axis.plot(at, values, style, color=f"C{colour}", ms=4, label=f"{penalty}, {short}")
    axis.axhline(NEEDED, color="grey", lw=0.8, ls="--")
    axis.set(ylabel="share of draws with the exact support", ylim=(-0.03, 1.03))
    epsilon_axis(axis, EPSILONS)
    axis.legend(fontsize=8)
    save(figure, folder / "figure.png")


def _from(own: Rows) -> str:
    """From which epsilon on the support is exact often enough, at it and at all larger ones."""
    enough = [all(later["exact"] >= NEEDED for later in own[i:]) for i in range(len(own))]
    return f"{own[enough.index(True)]['epsilon']:g}" if any(enough) else "none tried"


def words(data: Data) -> Data:
    """From where on the support is exact, and every row."""
    rows = data["rows"]
    summary = []
    for penalty in PENALTIES:
        for channel, (_, guarantee, _) in CHANNELS.items():
            own = _own(rows, penalty, channel)
            settings = [own[0][name] for name in ("strength", "clip_norm", "num_rounds")]
            summary.append([penalty, guarantee, _from(own), *settings])
    formats = {"epsilon": "g", "exact": ".3f", "missed": ".2f", "false": ".2f"}
    shown = [[r["penalty"], r["channel"], *(format(r[k], spec) for k, spec in formats.items())] for r in rows]
    false = SIZES.features - int((SIZES.truth != 0).sum())
    return {
        "points": len(STRENGTHS) * len(CLIPS) * len(ROUNDS),
        "tuned_at": TUNED_AT,
        "tuning": TUNING,
        "needed": NEEDED,
        "summary": table(["penalty", "guarantee", "exact support from epsilon", "strength", "clip", "rounds"], summary),
        "every": table(["penalty", "channel", "epsilon", "exact support", "missed of 6", f"false of {false}"], shown),
    }


def finding(data: Data) -> Finding:
    """From which epsilon on supports are exact."""
    said = [
        f"{penalty} finds the exact support from epsilon "
        + " and ".join(f"{_from(_own(data['rows'], penalty, c))} for {who}" for c, (_, who, _) in CHANNELS.items())
        for penalty in PENALTIES
    ]
    return Finding("; ".join(said), "none")


EXPERIMENT = Experiment("support-recovery", compute, draw, words, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
