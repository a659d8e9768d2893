"""MNIST, odd or even, 25 silos of two digits, a network 50-64-2: the paper's figures under an honest protocol.

``python -m tacit.studies.papers.mnist_parity_mlp`` writes ``results/mnist-parity-mlp``; it needs MNIST's files. Every
curve is kept in ``parts.json`` as soon as it is there: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit import data
from tacit.objectives import Objective, mlp, softmax
from tacit.runtime.participation import participation
from tacit.runtime.simulate import Seed
from tacit.studies.papers.common import Parts, Rows, grid_of, out_folder, seeds_of, table, write
from tacit.studies.papers.mlp_curves import (
    EPSILONS,
    Arm,
    Curves,
    best_of,
    difference_table,
    draw,
    draw_panels,
    error_table,
    paired,
)

OBJECTIVE = Objective(mlp((50, 64, 2)), softmax())
SILOS, SEEDS, SPARE = 25, 5, 3
SETTINGS = ((25, 25), (25, 50), (12, 25), (12, 50))
"""(M, R): how many silos take part in a round, and rounds."""
BATCHES = {"batch_size": 308, "sampling": "poisson", "capacity": 379}
CLIPS = (1.0, 2.0)
MOVES = {
    0.75: (3.0, 4.0, 6.0),
    1.0: (3.0, 4.0, 6.0),
    1.5: (4.0, 6.0, 8.0),
    3.0: (8.0, 12.0, 16.0),
    6.0: (12.0, 16.0, 24.0),
    12.0: (16.0, 24.0, 32.0),
    18.0: (16.0, 24.0, 32.0),
}
"""Step size x clip norm with 25 rounds: how far a clipped gradient moves the model."""
STEPS = (0.25, 0.5, 1.0, 2.0)
"""Step sizes without privacy."""
PROTOTYPE = {(25, 25): (10.8, 10.4, 8.7, 7.1, 5.8, 5.2, 4.8), (25, 50): (11.3, 9.9, 8.6, 7.0, 5.6, math.nan, math.nan)}
"""Minibatch SGD of a throw-away prototype with the same accounting, tuned on test records, two seeds."""
REPAIRED = {
    (25, 25): (13.90, 12.99, 11.74, 9.78, 8.15, 7.64, 7.60),
    (12, 50): (16.19, 15.26, 14.12, 10.81, 9.29, 6.79, 5.92),
}
"""The released code's minibatch SGD with its clipping repaired, at its own noise."""


def main() -> None:
    """Run what is missing and write the result folder."""
    started = time.perf_counter()
    folder = out_folder("mnist-parity-mlp")
    federations = [data.load("mnist", seed=s) for s in range(SEEDS)]
    records = [len(silo.train["y"]) for silo in federations[0].silos]
    parts = Parts(folder / "parts.json", _settings(records))
    seeds = seeds_of(federations, OBJECTIVE)
    found = {setting: Experiment(setting, seeds, records, parts).everything() for setting in SETTINGS}
    first = Experiment(SETTINGS[0], seeds, records, parts)
    pricing: dict[str, Rows] = {}
    for label in ("MB-SGD", "SPIDER q=2"):
        pricing |= {label: first.curve(label), f"{label}, theorem's noise": first.curve(label, ours=False)}
    _save(folder, found, pricing, records, parts, started)


@dataclass
class Found:
    """One setting: curves by algorithm, errors without privacy, differences to minibatch SGD paired by seed."""

    shown: dict[str, Rows]
    floors: dict[str, float]
    gains: dict[str, Rows]


@dataclass
class Experiment:
    """The curves of one (M, R); clip, step and the algorithms' own numbers are chosen on the first seed."""

    setting: tuple[int, int]
    seeds: list[Seed]
    records: list[int]
    parts: Parts

    @property
    def curves(self) -> Curves:
        """The harness; where not all silos take part in a round, each answers a few rounds more than its share."""
        taking, rounds = self.setting
        cap = None if taking == SILOS else math.ceil(rounds * taking / SILOS) + SPARE
        who = participation(SILOS, taking, cap=cap)
        delta = 1 / self.records[0] ** 2
        return Curves(OBJECTIVE, self.seeds[:1], self.seeds, self.records, delta, rounds, who=who)

    def curve(self, label: str, *, ours: bool = True) -> Rows:
        """Error by epsilon, at our price or with the theorem's noise."""
        name = f"{label}, (M, R)={self.setting}" + ("" if ours else ", theorem's noise")
        return self.parts.get(name, lambda: self.curves.curve(arms(self.setting[1])[label], ours=ours))

    def floor(self, label: str) -> float:
        """Test error without privacy, the step chosen on validation records."""
        name = f"{label}, (M, R)={self.setting}, not private"
        rows = self.parts.get(name, lambda: self.curves.non_private(arms(self.setting[1])[label], STEPS))
        return float(rows[0]["test_error"]["mean"])

    def everything(self) -> Found:
        """All curves of the setting. SPIDER is the better of its phases by validation error."""
        spiders = [self.curve(f"SPIDER q={q}") for q in (2, 3)]
        shown = {"MB-SGD": self.curve("MB-SGD"), "SPIDER": best_of(spiders)}
        shown |= {"SVRG": self.curve("SVRG q=3"), "Local SGD": self.curve("Local SGD")}
        floors = {"MB-SGD": self.floor("MB-SGD"), "SPIDER": self.floor("SPIDER q=2")}
        floors |= {"Local SGD": self.floor("Local SGD")}
        gains = {label: paired(rows, shown["MB-SGD"]) for label, rows in shown.items() if label != "MB-SGD"}
        return Found(shown, floors, gains)


def arms(rounds: int) -> dict[str, Arm]:
    """The algorithms and the points tried at each epsilon; more rounds take shorter steps."""
    scale = (25 / rounds) ** 0.5

    def plain(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS, move=[m * scale for m in MOVES[epsilon]])

    def local(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS[1:], move=[m * scale / 4 for m in MOVES[epsilon]])

    def reduced(epsilon: float) -> list[dict[str, float]]:
        moves = [m * scale for m in MOVES[epsilon]]
        return grid_of(clip_norm=CLIPS[:1], move=moves, difference_slope=(0.1, 0.3), difference_noise=(2.0,))

    made = [
        Arm("MB-SGD", "mb-sgd", {"output": "last"}, plain, {"sampling": "full"}),
        Arm("SPIDER q=2", "prox-spider", {"phase_length": 2}, reduced, {}),
        Arm("SPIDER q=3", "prox-spider", {"phase_length": 3}, reduced, {}),
        Arm("SVRG q=3", "prox-svrg", {"phase_length": 3}, reduced),
        Arm("Local SGD", "local-sgd", {"local_steps": 4, **BATCHES}, local),
    ]
    return {arm.label: arm for arm in made}


def _settings(records: list[int]) -> Any:
    grids = [(a.label, repr(a.static), [a.points(e) for e in EPSILONS]) for a in arms(25).values()]
    return [records, SEEDS, SPARE, STEPS, grids]


def _save(
    folder: Path,
    found: dict[tuple[int, int], Found],
    pricing: dict[str, Rows],
    records: list[int],
    parts: Parts,
    started: float,
) -> None:
    panels = {f"MNIST odd/even, M={m}, R={r}": (cell.shown, cell.floors) for (m, r), cell in found.items()}
    draw_panels(folder / "figure.png", panels)
    draw(folder / "pricing.png", "The same epsilon, priced by theorems and here (M=25, R=25)", pricing, {})
    plain = {f"{m},{r}": vars(cell) for (m, r), cell in found.items()}
    extra = {"records": records, "delta": 1 / records[0] ** 2, "seeds": SEEDS, "cpu_minutes": parts.cpu_minutes}
    write(folder, {**extra, "settings": plain, "pricing": pricing}, _readme(records[0], found, pricing, parts), started)


def _readme(records: int, found: dict[tuple[int, int], Found], pricing: dict[str, Rows], parts: Parts) -> str:
    points = {label: sum(len(arm.points(e)) for e in EPSILONS) for label, arm in arms(25).items()}
    tried = ", ".join(f"{label} {number}" for label, number in points.items())
    return f"""# MNIST, odd or even, 25 silos

![figure](figure.png)

25 disjoint silos of one odd and one even digit ({records} training records each), PCA to 50 dimensions fitted on 10,000
images that are in no silo, a network 50-64-2, R rounds with M of the 25 silos and full batches, delta = 1/{records}^2.
Mean test error in percent (and its deviation over {SEEDS} seeds: partition, split, start, who comes, and noise). Clip,
step and the algorithms' own numbers are those of the least validation error at each epsilon, on one seed; the choice
does not see test records, but the first ranges of the grid were set after exploratory runs on that seed that also
printed test errors, and were widened after runs on other seeds by their validation errors. Points tried for one
(M, R), all epsilons together: {tried}. Local SGD makes 4 local steps a round on Poisson batches of 308, all priced.
"SPIDER" is the better of the phases tried (2 and 3) by validation error. With M = 12 a silo agrees to answer its share
of the rounds and {SPARE} more, and pays for those (the dearest ones); which silos come amplifies nothing. The whole
study took {parts.cpu_minutes:.0f} CPU-minutes.

{"".join(_setting_text(setting, cell) for setting, cell in found.items())}
{_why(found)}
At epsilon 0.75 in 25 rounds minibatch SGD stays above the prototype, whose two seeds were tuned on test records: on
other seeds clips from 0.5 to 2, falling steps, averages of the last iterates and features scaled by 1/3 or 3 or
whitened all end between 11.8 and 13.7 on validation records.

**The same epsilon with the noise that the theorems print** (M = 25, R = 25, same grids, tuned again): minibatch SGD's
adds about 31 times too much noise.

![pricing](pricing.png)

{error_table(pricing, {})}"""


def _setting_text(setting: tuple[int, int], cell: Found) -> str:
    differences = difference_table("less MB-SGD, paired by seed, 90% intervals", cell.gains, EPSILONS)
    elsewhere = {"prototype, tuned on test": PROTOTYPE, "released code, clipping repaired": REPAIRED}
    known = [
        [label, *("" if math.isnan(error) else error for error in errors[setting])]
        for label, errors in elsewhere.items()
        if setting in errors
    ]
    anchors = table(["MB-SGD elsewhere", *(f"{e:g}" for e in EPSILONS)], known) + "\n" if known else ""
    head = f"## M = {setting[0]}, R = {setting[1]}"
    return f"{head}\n\n{error_table(cell.shown, cell.floors)}\n{differences}\n{anchors}"


WHY = """**Why variance reduction does not win here.** With 25 rounds each step is long: between two iterates a record's
gradient changes as much as it is, so a difference clipped to C_s ||dw|| either carries as much noise as a fresh
gradient or, with a small C_s, carries little of the change. And the noise of an anchor is shared by all steps of its
phase: with the budget all on anchors its variance falls by the phase length q, but q steps in the same direction add it
coherently, which gives the q back. What remains is the staleness of the estimate. The paper's gain shows where
curvature forgets a shared noise within a phase and gradients move little (results/nonconvex-rates).
"""


def _why(found: dict[tuple[int, int], Found]) -> str:
    """How often SPIDER and SVRG beat minibatch SGD beyond the interval, and the explanation where they do not."""
    cells = [gain for cell in found.values() for label in ("SPIDER", "SVRG") for gain in cell.gains[label]]
    better = sum(gain["mean"] + gain["half90"] < 0 for gain in cells)
    worse = sum(gain["mean"] - gain["half90"] > 0 for gain in cells)
    counted = (
        f"SPIDER and SVRG are better than minibatch SGD beyond the 90% interval in {better} of {len(cells)} cells and\n"
        f"worse in {worse}. The paper reports that SPIDER improves on it by 1.72% on average (tuned on test records).\n"
    )
    return counted if better > worse else f"{counted}\n{WHY}"


if __name__ == "__main__":
    main()
