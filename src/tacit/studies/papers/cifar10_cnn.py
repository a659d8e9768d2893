"""CIFAR-10, ten silos of one class each, a convolutional network: the paper's figures under an honest protocol.

``python -m tacit.studies.papers.cifar10_cnn`` writes ``results/cifar10-cnn``; it needs CIFAR-10's file. Every curve is
kept in ``parts.json`` as soon as it is there: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import data
from tacit.algorithms import paper_noise
from tacit.objectives import Objective, cnn, softmax
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass, multi_pass_experiments
from tacit.runtime.simulate import Seed
from tacit.studies.papers.common import Parts, Rows, grid_of, out_folder, seeds_of, table, write
from tacit.studies.papers.mlp_curves import Arm, Curves, difference_table, draw, error_table, paired

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


def main() -> None:
    """Run what is missing and write the result folder."""
    started = time.perf_counter()
    folder = out_folder("cifar10-cnn")
    federations = [data.load("cifar10", seed=s) for s in range(SEEDS)]
    records = [len(silo.train["y"]) for silo in federations[0].silos]
    parts = Parts(folder / "parts.json", _settings(records))
    study = Experiment(seeds_of(federations, OBJECTIVE), records, parts)
    for rounds in ROUNDS:
        for label in LABELS:
            study.curve(label, rounds)
            study.floor(label, rounds)
    study.curve("MB-SGD", ROUNDS[0], ours=False)
    _save(folder, study, started)


@dataclass
class Experiment:
    """The study's curves, by label and number of rounds; settings are chosen on the first seed."""

    seeds: Sequence[Seed]
    records: list[int]
    parts: Parts

    @property
    def delta(self) -> float:
        """One over the square of the number of records of a silo."""
        return 1 / self.records[0] ** 2

    def curves(self, rounds: int) -> Curves:
        """The harness for so many rounds."""
        return Curves(
            OBJECTIVE, self.seeds[:1], self.seeds, self.records, self.delta, rounds, chunk=6, epsilons=EPSILONS[rounds]
        )

    def curve(self, label: str, rounds: int, *, ours: bool = True) -> Rows:
        """Error by epsilon; for more than the first number of rounds, at the settings that were best there."""

        def make() -> Rows:
            earlier = self.curve(label, ROUNDS[0]) if rounds != ROUNDS[0] else None
            return self.curves(rounds).curve(arm_of(label, earlier, ours), ours=ours)

        return self.parts.get(f"{label}, R={rounds}" + ("" if ours else ", theorem's noise"), make)

    def floor(self, label: str, rounds: int) -> float:
        """Test error without privacy, the step chosen on validation records."""
        name = f"{label}, R={rounds}, not private"
        return float(self._open(name, label, rounds)[0]["test_error"]["mean"])

    def _open(self, name: str, label: str, rounds: int) -> Rows:
        steps: tuple[float, ...] = STEPS
        if rounds != ROUNDS[0]:
            [best] = self._open(f"{label}, R={ROUNDS[0]}, not private", label, ROUNDS[0])
            steps = (best["point"]["move"],)
        return self.parts.get(name, lambda: self.curves(rounds).non_private(arm_of(label), steps))


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


def _settings(records: list[int]) -> Any:
    arms = [(label, repr(arm_of(label).static), [arm_of(label).points(e) for e in MOVES]) for label in LABELS]
    return [records, ROUNDS, SEEDS, EPSILONS, STEPS, arms]


def _save(folder: Path, study: Experiment, started: float) -> None:
    shown, floors, gains = {}, {}, {}
    for rounds in ROUNDS:
        shown[rounds] = {label: study.curve(label, rounds) for label in LABELS}
        floors[rounds] = {label: study.floor(label, rounds) for label in LABELS}
        draw(folder / f"figure-r{rounds}.png", f"CIFAR-10, M=10, R={rounds}", shown[rounds], floors[rounds])
        gains[rounds] = {label: paired(shown[rounds][label], shown[rounds]["MB-SGD"]) for label in LABELS[1:]}
    pricing = {
        "MB-SGD": study.curve("MB-SGD", ROUNDS[0]),
        "MB-SGD, theorem's noise": study.curve("MB-SGD", ROUNDS[0], ours=False),
    }
    draw(folder / "pricing.png", "The same epsilon, priced by the theorem and here", pricing, {})
    found = {"curves": shown, "non_private": floors, "less_mb_sgd": gains, "pricing": pricing}
    extra = {"records": study.records, "delta": study.delta, "seeds": SEEDS, "cpu_minutes": study.parts.cpu_minutes}
    write(folder, {**extra, **found}, _readme(study, shown, floors, gains, pricing), started)


def _readme(
    study: Experiment,
    shown: dict[int, dict[str, Rows]],
    floors: dict[int, dict[str, float]],
    gains: dict[int, Any],
    pricing: dict[str, Rows],
) -> str:
    n = study.records[0]
    less = {r: difference_table("less MB-SGD, paired by seed", gains[r], EPSILONS[r]) for r in ROUNDS}
    results = "\n".join(f"R = {r}:\n\n{error_table(shown[r], floors[r])}\n{less[r]}" for r in ROUNDS)
    return f"""# CIFAR-10, ten silos of one class each

![R=50](figure-r50.png) ![R=100](figure-r100.png)

Ten silos, each with one class of CIFAR-10 ({n} training records; 500 each for validation and test, split at random
before anything else), the network of the paper (two 5x5 convolutions of 6 and 16 channels with 2x2 max pooling, dense
layers of 120, 84 and 10: 62,006 parameters), all ten silos in every round, delta = 1/{n}^2. Pixels are scaled to [-1,
1], which needs no look at the data. {BATCH} records a silo and round: Poisson batches of {BATCH} on average and
{CAPACITY} at most; Local SGD makes {LOCAL_STEPS} local steps on batches of {BATCH // LOCAL_STEPS} (at most
{LOCAL_CAPACITY}), SPIDER has phases of {PHASE}. Every release is priced. Mean test error in percent (and its deviation
over {SEEDS} seeds: split, start, batches and noise); chance is 90.

{results}
**Grid.** Clip {CLIP:g}. Step size x clip at epsilon: {_grid()}; divided by {LOCAL_STEPS} for each local step.
SPIDER: the clip of differences is {SLOPES[0]:g} times the distance moved (at most {2 * CLIP:g}), with twice the noise
multiplier.
Without privacy, step sizes {STEPS}. The setting of the least validation error on the first seed is used for all seeds;
test records choose nothing. The ranges come from runs on the first seed, by their validation errors. {_edges(study)}
Without privacy nothing is clipped, and in so few rounds a clip helps: nearly every gradient is scaled to the same
length, and silos of one class do not pull further than others. That is why private errors can be the smaller ones.

**What was cut, and why.** A run of 50 rounds takes some 20 CPU-seconds on one core, so that the paper's grid (up to 20
steps x 6 clips, 8 phase lengths, 7 epsilons, 10 splits) would take weeks. Here: 3 of the 7 epsilons, {SEEDS} seeds,
four steps, one clip and one phase length; at R = 100 two epsilons, with the settings chosen at R = 50; the theorem's
noise at R = 50 alone. One clip is enough: nearly every gradient is longer, so that a smaller one only rescales it. The
whole study took {study.parts.cpu_minutes:.0f} CPU-minutes.

**The paper.** It reports that SPIDER is better than both private baselines at most epsilons (figures only; tuned on
test records; batches that grow with epsilon). {_verdict(gains)}

**The same epsilon with the paper's constants.** Minibatch SGD with the noise that its theorem prints, beside ours (R =
{ROUNDS[0]}; at a tenth of the same steps, since noise is that much larger). SPIDER's theorem speaks of full batches
only.

![pricing](pricing.png)

{error_table(pricing, {})}
{_constants(n, study.delta)}
{_failing(n, study.delta)}"""


def _grid() -> str:
    return "; ".join(f"{epsilon:g}: {', '.join(f'{m:g}' for m in moves)}" for epsilon, moves in MOVES.items())


def _edges(study: Experiment) -> str:
    """Which private settings were the largest of the grid, so that larger ones might be better."""
    found = []
    for label in LABELS:
        scale = LOCAL_STEPS if label == "Local SGD" else 1
        rows = study.curve(label, ROUNDS[0])
        at = [f"{r['epsilon']:g}" for r in rows if r["point"]["move"] * scale >= max(MOVES[r["epsilon"]]) * 0.999]
        found += [f"{label} (epsilon {', '.join(at)})"] if at else []
    if not found:
        return "No best step was the largest of its grid."
    return f"The best step was the largest of the grid for {'; '.join(found)}: larger ones might be better still."


def _verdict(gains: dict[int, Any]) -> str:
    """How often SPIDER is better than minibatch SGD here, beyond the interval."""
    cells = [gain for rows in gains.values() for gain in rows["SPIDER"]]
    better = sum(gain["mean"] + gain["half90"] < 0 for gain in cells)
    worse = sum(gain["mean"] - gain["half90"] > 0 for gain in cells)
    found = (
        f"Here SPIDER with phases of {PHASE} is better than minibatch SGD beyond the\n90% interval in {better} of "
        f"{len(cells)} cells and worse in {worse}."
    )
    if better:
        return found
    return found + (
        " Steps are few and long, as in\nresults/mnist-parity-mlp, whose page gives a reason; longer phases and other "
        "clips of differences were not tried."
    )


def _constants(records: int, delta: float) -> str:
    """Noise over ours, and what it is worth, for the theorem and for the paper's experiments, of minibatch SGD."""
    rows = []
    for rounds in ROUNDS:
        for epsilon in EPSILONS[rounds]:
            setting = Setting(
                records=records, num_rounds=rounds, batch_size=BATCH, epsilon=epsilon, delta=delta, sampling="poisson"
            )
            cells = []
            for noise in (multi_pass(setting), multi_pass_experiments(setting)):
                cells += [f"{noise.ratio:.2f}", f"{noise.epsilon_certified:.3g}"]
            rows.append([rounds, f"{epsilon:g}", *cells])
    header = ["R", "epsilon", "theorem's noise / ours", "is really", "experiments' noise / ours", "is really"]
    return (
        "Minibatch SGD on the same Poisson batches without a limit: the noise of the theorem, and that of the paper's\n"
        "experiments (stated for larger batches), over the least that is private, and the epsilon that each is\n"
        "certified for:\n\n" + table(header, rows)
    )


def _failing(records: int, delta: float) -> str:
    """Where the theorem's conditions do not hold, so that its noise is used outside of it."""
    rounds = ROUNDS[0]
    words = []
    for epsilon in EPSILONS[rounds]:
        told: dict[str, Any] = {"num_rounds": rounds, "batch_size": BATCH, "sampling": "poisson"}
        found = paper_noise("mb-sgd", records=records, epsilon=epsilon, delta=delta, **told)
        failed = [] if found is None else [condition.text for condition in found.conditions if not condition.holds]
        words += [f"{', '.join(failed)} (epsilon = {epsilon:g})"] if failed else []
    return f"Conditions of the theorem that fail at R = {rounds}: {'; '.join(words) or 'none'}.\n"


if __name__ == "__main__":
    main()
