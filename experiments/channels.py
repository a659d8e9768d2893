"""Channels on three real studies: error at equal epsilon, who is trusted, seconds a round, and what absence costs.

``python -m experiments.channels`` writes ``results/channels``. Finished parts are kept in ``parts.json`` there.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import epsilon_axis, interval, seeds_of, train
from experiments.deployed_rounds import play, silos_of
from experiments.folder import Data, Experiment, Finding, Parts, save, table
from experiments.parties import Consortium
from tacit.plans.spec import Study, load_study
from tacit.studies.reference import Reference
from tacit.studies.run import Prepared, measured, noise_at, pooled, prepare

EPSILONS = (0.5, 1.0, 4.0)
CHANNELS = ("direct", "pairwise", "shuffled-sum", "trusted")
TRUSTED = {
    "direct": "nobody",
    "pairwise": "all other silos but one",
    "shuffled-sum": "one of two shufflers, and all other silos but one",
    "trusted": "the server, with everything",
    "open": "everybody",
}
MISSING, SPARE_ROUNDS, STUDIES_DRAWN, PLAYED = (0.05, 0.1, 0.2), 30, 4000, 2
MOST_TRIED = 20
"""How long an axis of what is tried may become, where choices lie at its end again and again."""


@dataclass(frozen=True)
class Design:
    """A study with its clip, server and output, its score, how often it is repeated, and what is tried.

    Tried are ``rounds``, unless it is one number, and ``moves``, how far a step goes: step size times clip for plain
    steps, and the step size of adam.
    """

    study: str
    metric: str
    seeds: int
    rounds: tuple[int, ...]
    moves: tuple[float, ...]
    clip: float
    server: str = "sgd"
    output: str = "last"
    changes: tuple[str, ...] = ()

    def load(self, channel: str, *more: str) -> Study:
        """The study through a channel; through the shuffled sum as many silos collude as through pairwise sums."""
        private = "direct" if channel == "open" else channel
        own = [f"algorithm.channel={private}", f"algorithm.num_rounds={self.rounds[0]}", "run.alone=false"]
        own += [f"algorithm.server={self.server}", f"algorithm.output={self.output}"]
        return load_study(self.study, [*own, *self.changes, *more])

    def step_size(self, move: float) -> float:
        """The step size of a move."""
        return move / self.clip if self.server == "sgd" else move


def powers(first: int, last: int) -> tuple[float, ...]:
    """Powers of two."""
    return tuple(2.0**k for k in range(first, last + 1))


HEART_ROUNDS = (1, 2, 3, 5, 8, 16, 32)
EVERYBODY = "run.participants=none"
DESIGNS = (
    Design("heart-disease", "error", 120, HEART_ROUNDS, powers(-5, 3), 0.3, "adam", changes=("run.honest=0.75",)),
    Design("insurance-linear", "mse", 20, (35,), powers(-7, 2), 0.15, changes=("run.honest=0.9",)),
    Design("mnist-logistic-parity", "error", 5, (35,), powers(1, 9), 2.0, changes=("run.honest=0.96", EVERYBODY)),
)


@cache
def federations(design: Design) -> tuple[Any, ...]:
    """The silos of each repetition; read once."""
    return prepare(design.load("direct", f"run.seeds={design.seeds}")).federations


def prepared_for(design: Design, channel: str, *more: str) -> Prepared:
    """The study, assembled and priced for the records of the first repetition."""
    return prepare(design.load(channel, "run.seeds=1", *more))


def errors(design: Design, channel: str) -> Data:
    """The chosen rounds and step at each epsilon, by validation score, and their test scores.

    The same are tried through every channel; where a choice lies at the edge, one more is tried beyond it. Without
    privacy (``open``) there is neither clip nor noise.
    """
    rounds, moves = list(design.rounds), list(design.moves)
    labels = ["none"] if channel == "open" else [f"{epsilon:g}" for epsilon in EPSILONS]
    found: dict[tuple[int, float], dict[str, np.ndarray]] = {}
    while True:
        for count in rounds:
            missing = [move for move in moves if (count, move) not in found]
            found |= _scored(design, channel, count, missing) if missing else {}
        means = np.stack([scores["validation"].mean(axis=0) for scores in found.values()])
        chosen = [list(found)[best] for best in means.argmin(axis=0)]
        wider = beyond(rounds, [at[0] for at in chosen], 1) if len(design.rounds) > 1 else []
        longer = beyond(moves, [at[1] for at in chosen])
        if not [*wider, *longer] or max(len(rounds), len(moves)) > MOST_TRIED:
            break
        rounds, moves = sorted([*rounds, *map(int, wider)]), sorted([*moves, *longer])
    return {
        label: {
            "rounds": best[0],
            "move": best[1],
            "tried": {"rounds": [rounds[0], rounds[-1]], "move": [moves[0], moves[-1]]},
            "validation": float(found[best]["validation"][:, place].mean()),
            "test": [round(float(v), 6) for v in found[best]["test"][:, place]],
        }
        for place, (label, best) in enumerate(zip(labels, chosen, strict=True))
    }


def beyond(values: Sequence[float], chosen: Sequence[float], least: float = 0.0) -> list[float]:
    """What lies beyond the ends that were chosen, by a factor of two; nothing lies before the ``least``."""
    first, last = values[0], values[-1]
    return [first / 2] * (first in chosen and first > least) + [last * 2] * (last in chosen)


def _scored(
    design: Design, channel: str, rounds: int, moves: Sequence[float]
) -> dict[tuple[int, float], dict[str, np.ndarray]]:
    """Scores on validation and test records, (repetitions, epsilons) for each step; infinite where it diverged."""
    prepared = prepared_for(design, channel, f"algorithm.num_rounds={rounds}")
    objective, points = prepared.builder.problem.objective, []
    epsilons = (math.inf,) if channel == "open" else EPSILONS
    for epsilon in epsilons:
        noise = {} if channel == "open" else {"noise_multiplier": noise_at(prepared, {"privacy.epsilon": epsilon})}
        points += [{"step_size": design.step_size(move), **noise} for move in moves]
    seeds = seeds_of(federations(design), objective)
    scores = train(_build(prepared, design, channel), points, seeds, objective, who=prepared.who, rounds=rounds)
    tables = {
        part: np.nan_to_num(scores[f"{part}_{design.metric}"].astype(float), nan=np.inf, posinf=np.inf).reshape(
            len(seeds), len(epsilons), -1
        )
        for part in ("validation", "test")
    }
    return {(rounds, move): {part: own[:, :, i] for part, own in tables.items()} for i, move in enumerate(moves)}


def _build(prepared: Prepared, design: Design, channel: str) -> Any:
    opened = {"channel": "open", "clip_norm": None, "noise_multiplier": None}

    def build(**point: Any) -> Any:
        return prepared.builder.build(**(opened if channel == "open" else {"clip_norm": design.clip}), **point)

    return build


def converged(design: Design) -> list[float]:
    """Test scores of the model that is trained to convergence on all records, without privacy."""
    prepared, found = prepared_for(design, "direct"), []
    repeated = federations(design)
    longest = max(len(silo.train["y"]) for federation in repeated for silo in federation.silos)
    reference = Reference(prepared.study, prepared.builder, repeated[0], longest)
    objective = prepared.builder.problem.objective
    for seed, federation in zip(seeds_of(repeated, objective), repeated, strict=True):
        reached = reference.train(seed.params, pooled(federation, "train"), jax.random.key(0))
        found.append(float(measured(objective)(reached.params, seed.evaluation)[f"test_{design.metric}"]))
    return found


def seconds(design: Design) -> Data:
    """Seconds of a deployed round through each channel: middle of ten rounds, every silo a process, in one run."""
    studies = {
        channel: design.load(channel, "algorithm.num_rounds=11", "privacy.epsilon=1", f"name={design.study}-{channel}")
        for channel in CHANNELS
        if channel != "trusted"
    }
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        consortium = Consortium(Path(folder) / "c", silos_of(studies["direct"], **_policy()))
        try:
            consortium.start_silos()
            consortium.start_shufflers()
            consortium.ready()
            rows = {channel: [row["seconds"] for row in play(consortium, own)] for channel, own in studies.items()}
        finally:
            consortium.stop()
    return {channel: statistics.median(own[1:]) for channel, own in rows.items()}


def _policy() -> dict[str, Any]:
    """Owners that allow everything which is measured here; replies leave at once."""
    return {"budget": {"epsilon": 40.0, "delta": 1e-4}, "pad_seconds": 0.0}


def attempts(silos: int, least: int, missing: float, rng: np.random.Generator) -> int:
    """Attempts of a study, by the server's rule: the next one is that of those who answered; too few start anew."""
    made = 0
    for _ in range(SPARE_ROUNDS):
        here = silos
        while True:
            made += 1
            away = int(rng.binomial(here, missing))
            if not away:
                break
            here = here - away if here - away >= least else silos
    return made


def absence() -> list[Data]:
    """What missing answers cost: drawn by the server's rule for many studies, and played at four daemons."""
    played = _played()
    rows = []
    for silos, least in ((4, 3), (10, 5), (25, 12)):
        for missing in MISSING:
            rng = np.random.default_rng([silos, round(100 * missing)])
            drawn = [attempts(silos, least, missing, rng) for _ in range(STUDIES_DRAWN)]
            spare = math.ceil(np.quantile(drawn, 0.95)) - SPARE_ROUNDS
            row = {"silos": silos, "min_silos": least, "missing": missing, "mean": float(np.mean(drawn))}
            own = played[f"{missing:g}"] if silos == 4 else []
            rows.append({**row, "spare": spare, **_price(spare), "played": own})
    return rows


def _price(spare: int) -> Data:
    """Epsilon with the noise that costs 1 without spare attempts, and how much more noise keeps it at 1."""
    plain = _pairwise_plan(0)
    z = float(np.max(plain.plan.parameters["noise_multiplier"]))
    at_noise = _pairwise_plan(spare, "privacy.epsilon=none", f"privacy.noise_multiplier={z!r}")
    more = float(np.max(_pairwise_plan(spare).plan.parameters["noise_multiplier"]))
    price = at_noise.plan.silos[0].price
    assert price is not None
    return {"epsilon": price.epsilon, "noise": more / z}


def _pairwise_plan(spare: int, *more: str) -> Prepared:
    own = [f"pairwise.spare_attempts={spare}", "pairwise.min_silos=3", f"algorithm.num_rounds={SPARE_ROUNDS}"]
    return prepare(load_study("heart-disease", ["algorithm.channel=pairwise", "run.seeds=1", *own, *more]))


def _played() -> dict[str, list[int]]:
    """Attempts of whole studies at four daemons, some of whose answers are missing."""
    own = ["algorithm.channel=pairwise", f"algorithm.num_rounds={SPARE_ROUNDS}", "pairwise.min_silos=3"]
    study = load_study("heart-disease", [*own, "pairwise.spare_attempts=200", "privacy.epsilon=0.5"])
    found: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        consortium = Consortium(Path(folder) / "c", silos_of(study, **_policy()), shufflers=())
        try:
            consortium.start_silos()
            consortium.ready()
            for missing in MISSING:
                rows = [play(consortium, study, missing=missing, seed=seed) for seed in range(PLAYED)]
                found[f"{missing:g}"] = [sum(len(row["rosters"]) for row in history) for history in rows]
        finally:
            consortium.stop()
    return found


def compute(given: argparse.Namespace) -> Iterator[Data]:
    """Everything, part by part; the rounds of the largest study last."""
    parts = Parts(given.out / "parts.json", [asdict(design) for design in DESIGNS])
    found: Data = {"studies": {}, "epsilons": EPSILONS, "rounds": SPARE_ROUNDS}
    for design in DESIGNS:
        name = design.study
        own: Data = {"design": asdict(design), "silos": len(federations(design)[0].silos), "seconds": {}}
        own["records"] = [len(silo.train["y"]) for silo in federations(design)[0].silos]
        own["tested"] = sum(len(silo.test["y"]) for silo in federations(design)[0].silos)
        own["converged"] = parts.get(f"{name}, converged", partial(converged, design))
        for channel in (*CHANNELS, "open"):
            own[channel] = parts.get(f"{name}, {channel}", partial(errors, design, channel))
        found["studies"][name] = own
    found["absence"] = parts.get("absence", absence)
    for design in DESIGNS:
        own = found["studies"][design.study]
        own["seconds"] = parts.get(f"{design.study}, seconds", partial(seconds, design))
        yield {**found, "cpu_minutes": round(parts.cpu_minutes, 1)}


def edges(cells: Mapping[str, Any]) -> list[str]:
    """Where a choice is the first or the last of what was tried; one round is no edge, and one number no choice."""
    return [
        f"{what} at epsilon {label}"
        for label, cell in cells.items()
        for what, (first, last) in cell["tried"].items()
        if first != last and cell[what] in (first, last) and (what, cell[what]) != ("rounds", 1)
    ]


def draw(folder: Path, data: Data) -> None:
    """Test score against epsilon, one panel for each study."""
    figure, axes = plt.subplots(1, len(data["studies"]), figsize=(4 * len(data["studies"]), 3.4), layout="constrained")
    for axis, (name, own) in zip(axes, data["studies"].items(), strict=True):
        for channel in CHANNELS:
            rows = [interval(own[channel][f"{e:g}"]["test"]) for e in data["epsilons"]]
            means, bars = [row["mean"] for row in rows], [row["half90"] for row in rows]
            axis.errorbar(data["epsilons"], means, bars, marker="o", ms=3, capsize=2, label=channel)
        axis.axhline(float(np.mean(own["converged"])), color="grey", linestyle=":", label="no privacy, converged")
        axis.set(title=f"{name}, {own['silos']} silos", ylabel=f"test {own['design']['metric']}")
        epsilon_axis(axis, data["epsilons"])
    axes[0].legend(fontsize=7)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Tables, and what they say."""
    studies = data["studies"]
    return {
        "trusted": TRUSTED,
        "tables": {name: _table(own, data["epsilons"]) for name, own in studies.items()},
        "edges": {
            name: [f"{c}: {e}" for c in (*CHANNELS, "open") for e in edges(own[c])] for name, own in studies.items()
        },
        "settings": {name: _settings(own) for name, own in studies.items()},
        "heart": _heart(studies["heart-disease"]),
        "absent": _absence(data),
        "deployed": [name for name, own in studies.items() if own["seconds"]],
    }


def _cell(values: Any) -> str:
    found = interval(values)
    return f"{found['mean']:.4f} ± {found['half90']:.4f}"


def _table(own: Data, epsilons: Any) -> str:
    rows = []
    for channel in CHANNELS:
        taken = own["seconds"].get(channel)
        absent = "no daemon answers it" if channel == "trusted" else "not measured"
        shown = absent if taken is None else f"{taken:.2f}"
        cells = [_cell(own[channel][f"{e:g}"]["test"]) for e in epsilons]
        rows.append([channel, TRUSTED[channel], *cells, shown])
    fewer = [_cell(own["open"]["none"]["test"])] + [""] * (len(epsilons) - 1)
    rows.append(["no noise, step tuned alike", TRUSTED["open"], *fewer, ""])
    rows.append(["no privacy, converged", TRUSTED["open"], _cell(own["converged"]), *[""] * (len(epsilons) - 1), ""])
    return table(["channel", "trusted", *(f"epsilon {e:g}" for e in epsilons), "seconds a round"], rows)


def _settings(own: Data) -> str:
    """What was fixed, what was tried, and what was chosen."""
    design, several = own["design"], len(own["design"]["rounds"]) > 1
    chosen = {
        channel: [
            f"{cell['rounds']} x {cell['move']:g}" if several else f"{cell['move']:g}" for cell in own[channel].values()
        ]
        for channel in (*CHANNELS, "open")
    }
    rounds, moves = (", ".join(f"{v:g}" for v in design[axis]) for axis in ("rounds", "moves"))
    steps, step = ("Adam", "step size") if design["server"] == "adam" else ("Plain steps", "step size times clip")
    tried = f"Tried, rounds: {rounds}; {step}: {moves}." if several else f"{rounds} rounds. Tried, {step}: {moves}."
    names = "rounds x step, " if several else ""
    said = "; ".join(f"{channel} {', '.join(cells)}" for channel, cells in chosen.items())
    fixed = f"{steps}, the {design['output']} iterate, clip {design['clip']}."
    return f"{fixed} {tried} Chosen, {names}by epsilon: {said}."


def _heart(own: Data) -> Data:
    """How far each channel is at epsilon 1 from training without privacy, repetition by repetition."""
    without = {"converged": own["converged"], "rounds": own["open"]["none"]["test"]}
    gaps = {
        c: {name: interval(np.subtract(own[c]["1"]["test"], other)) for name, other in without.items()}
        for c in CHANNELS
    }
    near, error = {name: _near(gap) for name, gap in gaps["pairwise"].items()}, float(np.mean(own["converged"]))
    rows = [[c, *(f"{gap['mean']:+.4f} ± {gap['half90']:.4f}" for gap in both.values())] for c, both in gaps.items()]
    header = ["channel", "above the converged model", "above the same algorithm without noise"]
    coarse = math.sqrt(error * (1 - error) / own["tested"])
    return {"table": table(header, rows), "near": near, "tested": own["tested"], "coarse": coarse}


def _near(gap: Mapping[str, float]) -> str:
    """Whether a difference is at most a hundredth."""
    if gap["mean"] > 0.01:
        return "not within .01"
    return "within .01" + (" (with all of the interval)" if gap["mean"] + gap["half90"] <= 0.01 else " (on average)")


def _absence(data: Data) -> str:
    header = ["silos", "at least", "missing", "attempts drawn", "played", "95% need", "epsilon", "or noise"]
    rows = []
    for row in data["absence"]:
        played = ", ".join(str(n) for n in row["played"]) or "not played"
        counted = f"{data['rounds']} + {row['spare']}"
        price = f"{row['epsilon']:.3f}", f"x {row['noise']:.3f}"
        share = f"{row['missing']:.0%}"
        rows.append([row["silos"], row["min_silos"], share, f"{row['mean']:.1f}", played, counted, *price])
    return table(header, rows)


def finding(data: Data) -> Finding:
    """Test scores at epsilon 1 through each channel."""
    scores = {
        channel: ", ".join(f"{np.mean(own[channel]['1']['test']):.3g}" for own in data["studies"].values())
        for channel in ("pairwise", "trusted", "direct")
    }
    plain = ", ".join(f"{np.mean(own['converged']):.3g}" for own in data["studies"].values())
    said = (
        f"at epsilon 1 the test scores of {', '.join(data['studies'])} are {scores['pairwise']} through pairwise sums, "
        f"{scores['trusted']} with a trusted server and {scores['direct']} through direct messages; converged without "
        f"privacy they are {plain}"
    )
    return Finding(said, "none")


EXPERIMENT = Experiment("channels", compute, draw, words, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
