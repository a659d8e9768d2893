"""MNIST, odd or even, 25 silos of two digits, a network 50-64-2: the paper's figure under an honest protocol.

``python -m tacit.studies.papers.mnist_parity_mlp`` writes ``results/mnist-parity-mlp``; it needs MNIST's files.
"""

from __future__ import annotations

import time
from typing import Any

from tacit import data
from tacit.objectives import Objective, mlp, softmax
from tacit.studies.papers.common import grid_of, out_folder, seeds_of, table, write
from tacit.studies.papers.mlp_curves import EPSILONS, Arm, Curves, best_of, draw, error_table, paired

OBJECTIVE = Objective(mlp((50, 64, 2)), softmax())
ROUNDS, SEEDS = 25, 5
BATCHES = {"batch_size": 308, "sampling": "poisson", "capacity": 379}
PROTOTYPE = (10.8, 10.4, 8.7, 7.1, 5.8, 5.2, 4.8)
"""Minibatch SGD of a throw-away prototype with the same accounting, tuned on test records, two seeds."""
REPAIRED = (13.90, 12.99, 11.74, 9.78, 8.15, 7.64, 7.60)
"""The released code's minibatch SGD with its clipping repaired, at its own noise."""


def main() -> None:
    """Run everything and write the result folder."""
    started = time.perf_counter()
    folder = out_folder("mnist-parity-mlp")
    federations = [data.load("mnist", seed=s) for s in range(SEEDS)]
    seeds = seeds_of(federations, OBJECTIVE)
    records = [len(silo.train["y"]) for silo in federations[0].silos]
    delta = 1 / records[0] ** 2
    curves = Curves(OBJECTIVE, seeds[:1], seeds, records, delta, ROUNDS)
    arms = {arm.label: arm for arm in _arms()}
    found = {"MB-SGD": curves.curve(arms["MB-SGD"])}
    floors = {"MB-SGD": curves.non_private(arms["MB-SGD"], (0.25, 0.5, 1.0, 2.0))[0]["test_error"]["mean"]}
    for label in ("SPIDER q=2", "Local SGD", "SVRG q=3", "SPIDER q=3"):
        found[label] = curves.curve(arms[label])
        _save(folder, found, floors, curves, records, delta, started)
    floors["SPIDER"] = curves.non_private(arms["SPIDER q=2"], (0.25, 0.5, 1.0))[0]["test_error"]["mean"]
    floors["Local SGD"] = curves.non_private(arms["Local SGD"], (0.1, 0.25, 0.5))[0]["test_error"]["mean"]
    theorem = {label: curves.curve(arms[label], ours=False) for label in ("MB-SGD", "SPIDER q=2")}
    _save(folder, found, floors, curves, records, delta, started, theorem)


def _arms() -> list[Arm]:
    def moves(epsilon: float) -> tuple[float, ...]:
        return {0.75: (3, 4, 6), 1.0: (3, 4, 6), 1.5: (4, 6, 8), 3.0: (8, 12, 16)}.get(epsilon, (12, 16, 24))

    def plain(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=(2.0, 5.0), move=moves(epsilon))

    def local(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=(2.0,), move=[m / 4 for m in moves(epsilon)])

    def reduced(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=(2.0,), move=moves(epsilon), difference_slope=(0.1, 0.3), difference_noise=(2.0,))

    return [
        Arm("MB-SGD", "mb-sgd", {"output": "last"}, plain, {"sampling": "full"}),
        Arm("SPIDER q=2", "prox-spider", {"phase_length": 2}, reduced, {"period": 2}),
        Arm("SPIDER q=3", "prox-spider", {"phase_length": 3}, reduced, {"period": 3}),
        Arm("SVRG q=3", "prox-svrg", {"phase_length": 3}, reduced),
        Arm("Local SGD", "local-sgd", {"local_steps": 4, **BATCHES}, local),
    ]


def _save(
    folder: Any,
    found: dict[str, Any],
    floors: dict[str, float],
    curves: Curves,
    records: list[int],
    delta: float,
    started: float,
    theorem: dict[str, Any] | None = None,
) -> None:
    """Write what there is so far, so that a long run leaves a complete folder whenever it stops."""
    spiders = [rows for label, rows in found.items() if label.startswith("SPIDER")]
    shown = {"MB-SGD": found["MB-SGD"], "SPIDER": best_of(spiders)}
    shown |= {label.split(" q=")[0]: found[label] for label in ("SVRG q=3", "Local SGD") if label in found}
    draw(folder / "figure.png", f"MNIST odd/even, M=25, R={ROUNDS}", shown, floors)
    pricing: dict[str, Any] = {}
    for label, rows in (theorem or {}).items():
        pricing |= {label: found[label], f"{label}, theorem's noise": rows}
    if pricing:
        draw(folder / "pricing.png", "The same epsilon, priced by theorems and here", pricing, {})
    gains = {label: paired(rows, shown["MB-SGD"]) for label, rows in shown.items() if label != "MB-SGD"}
    plain = {"curves": found, "theorem": theorem, "non_private": floors, "less_mb_sgd": gains, "tried": curves.tried}
    extra = {"records": records, "delta": delta, "rounds": ROUNDS, "seeds": SEEDS}
    write(folder, {**extra, **plain}, _readme(records[0], shown, floors, pricing, gains, curves.tried), started)


def _readme(
    records: int,
    shown: dict[str, Any],
    floors: dict[str, float],
    pricing: dict[str, Any],
    gains: dict[str, Any],
    tried: dict[str, int],
) -> str:
    differences = table(
        ["less MB-SGD", *(f"{e:g}" for e in EPSILONS)],
        [[label, *(f"{g['mean']:+.2f} +- {g['half90']:.2f}" for g in row)] for label, row in gains.items()],
    )
    anchors = table(
        ["MB-SGD elsewhere", *(f"{e:g}" for e in EPSILONS)],
        [["prototype, tuned on test", *PROTOTYPE], ["released code, clipping repaired", *REPAIRED]],
    )
    priced = ""
    if pricing:
        priced = f"""
The same epsilon with the noise that the theorems print (same grids, tuned again): minibatch SGD's adds about 31 times
too much noise.

![pricing](pricing.png)

{error_table(pricing, {})}"""
    points = ", ".join(f"{label} {number}" for label, number in tried.items())
    return f"""# MNIST, odd or even, 25 silos

![figure](figure.png)

25 disjoint silos of one odd and one even digit ({records} training records each), PCA to 50 dimensions fitted on 10,000
images that are in no silo, a network 50-64-2, {ROUNDS} rounds with all 25 silos and full batches, delta =
1/{records}^2. Mean test error in percent (and its deviation over {SEEDS} seeds: partition, split, start and noise).
Clip, step and the algorithms' own numbers are those of the least validation error at each epsilon, on one seed; the
choice does not see test records, but the ranges of the grid were set after exploratory runs on the first seed that also
printed test errors. Points tried, all epsilons together: {points}. Local SGD makes 4 local steps a round on Poisson
batches of 308, all priced. "SPIDER" is the better of the phases tried (2 and 3) by validation error.

{error_table(shown, floors)}
Paired by seed, with 90% intervals (negative: better than MB-SGD):

{differences}
{anchors}
{_why(gains)}{priced}
(M, R) = (12, 25), (12, 50) and (25, 50) of the paper are not run here.
"""


WHY = """**Why variance reduction does not win here.** With 25 rounds each step is long: between two iterates a record's
gradient changes as much as it is, so a difference clipped to C_s ||dw|| either carries as much noise as a fresh
gradient or, with a small C_s, carries little of the change. And the noise of an anchor is shared by all steps of its
phase: with the budget all on anchors its variance falls by the phase length q, but q steps in the same direction add it
coherently, which gives the q back. What remains is the staleness of the estimate. The paper's gain shows where
curvature forgets a shared noise within a phase and gradients move little (results/nonconvex-rates).
"""


def _why(gains: dict[str, Any]) -> str:
    """The explanation, where SPIDER and SVRG beat MB-SGD at no epsilon beyond the interval."""
    reduced = [gain for label in ("SPIDER", "SVRG") for gain in gains.get(label, [])]
    return "" if any(gain["mean"] + gain["half90"] < 0 for gain in reduced) else WHY


if __name__ == "__main__":
    main()
