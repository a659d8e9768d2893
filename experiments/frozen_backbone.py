"""A frozen backbone with a private head against the same network trained privately from scratch, on CIFAR-10.

``python -m experiments.frozen_backbone`` writes ``results/frozen-backbone``; it needs CIFAR-10's file and torch. Half
of the training images are public and train the backbone without noise; the other half lies in ten silos. Every trial is
kept in ``trials.jsonl`` as soon as it is there: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from experiments.common import Runner, epsilon_axis, interval, noise_for
from experiments.folder import Data, Experiment, Finding, save, table
from experiments.search import Space, Trials, refuse_edges, search
from tacit.data.files import locate
from tacit.data.layout import layout
from tacit.models import backbone
from tacit.objectives import Objective, Problem, cnn, linear, softmax
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed

EPSILONS, SILOS, ROUNDS, BATCH = (1.0, 3.0), 10, 40, 125
PUBLIC, HELD_OUT, EPOCHS, FEATURES = 25_000, 0.15, 6, 84
TUNING, TESTING = (0,), {"head": 5, "scratch": 3}
STEPS = {"head": (2.0, 4.0, 8.0, 16.0, 32.0), "scratch": (0.125, 0.25, 0.5, 1.0, 2.0)}
TITLES = {"head": "frozen backbone, private head", "scratch": "private from scratch"}


class Body(nn.Module):  # type: ignore[misc]
    """Tacit's own `cnn` in torch, without its last layer; records have their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.wide, self.last = nn.Linear(400, 120), nn.Linear(120, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activations below the head."""
        x = x.permute(0, 3, 1, 2)
        for layer in (self.first, self.second):
            x = torch.relu(nn.functional.max_pool2d(layer(x), 2))
        return torch.relu(self.last(torch.relu(self.wide(x.flatten(1)))))


@dataclass(frozen=True)
class Images:
    """Images in [-1, 1] with their classes: the public half, the private half, and the official test images."""

    public: dict[str, np.ndarray]
    private: dict[str, np.ndarray]
    test: dict[str, np.ndarray]


def images(tiny: bool) -> Images:
    """CIFAR-10 as it is divided here: the public half is the same in all repetitions."""
    with np.load(locate(layout()["cifar10/cifar10.npz"], None, False)) as archive:
        x, y, test_x, test_y = (archive[name] for name in ("X", "y", "Xt", "yt"))
    order = np.random.default_rng(0).permutation(len(y))
    some = 600 if tiny else PUBLIC

    def part(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        return {"x": (x / 127.5 - 1.0).astype(np.float32), "y": y.astype(np.int32)}

    public, private = (part(x[rows], y[rows]) for rows in (order[:some], order[PUBLIC : PUBLIC + some]))
    return Images(public, private, part(test_x[:some], test_y[:some]))


def train_body(public: Mapping[str, np.ndarray], path: Path) -> None:
    """Train the network on public images, without noise, and keep all but its last layer."""
    torch.manual_seed(0)
    body = Body()
    net = nn.Sequential(body, nn.Linear(FEATURES, 10))
    x, y = torch.from_numpy(public["x"]), torch.from_numpy(public["y"]).long()
    steps = EPOCHS * -(-len(y) // 100)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y)).split(100):
            mirrored = torch.where(torch.rand(len(rows))[:, None, None, None] < 0.5, x[rows].flip(2), x[rows])
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(mirrored), y[rows]).backward()
            optimiser.step()
            schedule.step()
    save_file(body.state_dict(), path)


def featured(own: Images, path: Path) -> Images:
    """What the frozen body says of all images, centred and scaled by numbers of the public ones."""
    features = backbone(Body(), path, digest=hashlib.sha256(path.read_bytes()).hexdigest())
    made = [features(part["x"]) for part in (own.public, own.private, own.test)]
    centre = made[0].mean(axis=0)
    scale = np.sqrt(np.mean(np.sum((made[0] - centre) ** 2, axis=1)))
    parts = zip(made, (own.public, own.private, own.test), strict=True)
    return Images(*({"x": (x - centre) / scale, "y": part["y"]} for x, part in parts))


def seed_of(own: Images, objective: Objective, number: int) -> Seed:
    """The private half in ten silos drawn by this seed, of which some records are for validation."""
    rng = np.random.default_rng([7, number])
    shares = np.split(rng.permutation(len(own.private["y"])), SILOS)
    held = round(HELD_OUT * len(shares[0]))
    silos = [{k: v[rows[held:]] for k, v in own.private.items()} for rows in shares]
    kept = np.concatenate([rows[:held] for rows in shares])
    parts = {"validation": {k: v[kept] for k, v in own.private.items()}, "test": own.test}
    run, first = jax.random.split(jax.random.key(number))
    return Seed(run, objective.init(first), enrol(silos), jax.tree.map(jnp.asarray, parts))


@dataclass
class Method:
    """A model that is trained privately: MB-SGD, whose step is chosen on validation records, at any epsilon."""

    name: str
    objective: Objective
    seed: Callable[[int], Seed]
    records: list[int]
    terms: Mapping[str, Any]
    steps: Sequence[float]
    tuning: Sequence[int] = TUNING

    def __post_init__(self) -> None:
        self.build = partial(find("mb-sgd").build, Problem(self.objective), output="last", **self.terms)
        self.runner = Runner(self.build, self.objective, widths=(1, 5))

    def at(self, epsilon: float, trials: Trials, testing: int) -> Data:
        """The step of the least error on validation records, and its accuracy on test records with other seeds."""
        noise = float(np.max(noise_for(self.priced, self.records, epsilon, 1 / min(self.records) ** 2)))
        axes, label = {"step_size": self.steps}, f"{self.name} at {epsilon:g}"
        space = Space(label, axes, derived=lambda _: {"noise_multiplier": noise})
        chosen = search(space, trials, self.run, "validation_error", seeds=self.tuning)
        seeds = [len(self.tuning) + i for i in range(testing)]
        found = trials.get(space.label, [chosen["point"]], seeds, self.run)
        accuracy = (100 * (1 - found["test_error"][:, 0])).tolist()
        return {"epsilon": epsilon, "noise": noise, "chosen": chosen, "accuracy": accuracy}

    def priced(self, noise_multiplier: Any) -> Any:
        """The algorithm with this noise: a step is no part of its price."""
        return self.build(step_size=1.0, noise_multiplier=noise_multiplier)

    def run(self, points: list[dict[str, float]], number: int) -> Mapping[str, np.ndarray]:
        """Trials of some points on one seed."""
        return self.runner(points, self.seed(number))


def compute(given: Any) -> Iterator[Data]:
    """The head first, which is cheap; then the network from scratch, budget by budget."""
    begun, own, path = time.process_time(), images(given.tiny), given.out / "backbone.safetensors"
    if not path.exists():
        train_body(own.public, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    records = len(own.private["y"]) // SILOS - round(HELD_OUT * (len(own.private["y"]) // SILOS))
    batch = min(BATCH, records // 2)
    terms = {"num_rounds": 2 if given.tiny else ROUNDS, "batch_size": batch, "clip_norm": 1.0, "sampling": "wor"}
    trials = Trials(given.out / "trials.jsonl", [digest, records, terms], chunk=5)
    facts = {"digest": digest, "records": records, "silos": SILOS, "public": len(own.public["y"]), **terms}
    facts |= {
        "delta": 1 / records**2,
        "epochs": EPOCHS,
        "tuning": len(TUNING),
        "public_label": "head on public images, no noise",
    }
    makers: dict[str, Callable[[], Images]] = {"head": lambda: featured(own, path), "scratch": lambda: own}
    found: dict[str, list[Data]] = {}
    for name, make in makers.items():
        objective, shown = Objective(linear(FEATURES, 10) if name == "head" else cnn(), softmax()), make()
        method = Method(name, objective, partial(seed_of, shown, objective), [records] * SILOS, terms, STEPS[name])
        if name == "head":
            facts["public_accuracy"] = _open_accuracy(shown)
        for epsilon in EPSILONS[:1] if given.tiny else EPSILONS:
            row = method.at(epsilon, trials, 1 if given.tiny else TESTING[name])
            found.setdefault(name, []).append(row)
    if not given.tiny:
        refuse_edges({f"{name} at {row['epsilon']:g}": row["chosen"] for name, rows in found.items() for row in rows})
    yield {**facts, "methods": found, "cpu_minutes": spent(given.out, time.process_time() - begun)}


def spent(folder: Path, seconds: float) -> float:
    """The minutes of one core that all runs of the command have taken together, kept beside the trials."""
    path = folder / "spent.json"
    total = seconds + (json.loads(path.read_text())["cpu_seconds"] if path.exists() else 0.0)
    path.write_text(json.dumps({"cpu_seconds": total}))
    return total / 60


def _open_accuracy(own: Images) -> float:
    """The accuracy on test images of a head that is trained on all public images, without noise."""
    x, y = (torch.from_numpy(own.public[name]) for name in ("x", "y"))
    head = nn.Linear(FEATURES, 10)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=100)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(head(x), y.long())
        loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        said = head(torch.from_numpy(own.test["x"])).argmax(dim=1).numpy()
    return float(100 * np.mean(said == own.test["y"]))


def draw(folder: Path, data: Data, titles: Mapping[str, str] = TITLES) -> None:
    """Test accuracy by epsilon."""
    figure, axis = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
    for name, rows in data["methods"].items():
        told = [interval(row["accuracy"]) for row in rows]
        epsilons = [row["epsilon"] for row in rows]
        errors = [one["half90"] for one in told]
        axis.errorbar(epsilons, [one["mean"] for one in told], yerr=errors, fmt="o-", capsize=3, label=titles[name])
    axis.axhline(data["public_accuracy"], lw=0.8, color="gray", label=data["public_label"])
    epsilon_axis(axis, [row["epsilon"] for row in next(iter(data["methods"].values()))])
    axis.set_ylabel("test accuracy, percent")
    axis.legend(frameon=False, fontsize=8)
    save(figure, folder / "figure.png")


def words(data: Data, titles: Mapping[str, str] = TITLES) -> Data:
    """The table of two methods, and by how much the first is ahead."""
    rows, ahead = [], {}
    ours, theirs = ({row["epsilon"]: row for row in data["methods"][name]} for name in titles)
    for epsilon, pair in ((epsilon, (ours[epsilon], theirs[epsilon])) for epsilon in ours):
        told = [interval(row["accuracy"]) for row in pair]
        ahead[epsilon] = told[0]["mean"] - told[1]["mean"]
        shown = [
            f"{one['mean']:.1f} ± {one['half90']:.1f} ({len(row['accuracy'])} seeds)"
            for one, row in zip(told, pair, strict=True)
        ]
        steps = [f"{row['chosen']['point']['step_size']:g} (of {row['chosen']['tried']})" for row in pair]
        rows.append([f"{epsilon:g}", f"{pair[0]['noise']:.3g}", *shown, f"{ahead[epsilon]:+.1f}", *steps])
    header = ["epsilon", "noise multiplier", *titles.values(), "ahead by", "first one's step", "second one's step"]
    return {"table": table(header, rows), "least": min(ahead.values()), "most": max(ahead.values())}


def finding(data: Data) -> Finding:
    """Accuracies of both at every epsilon."""
    both = [
        " and ".join(f"{np.mean(row['accuracy']):.0f}% at epsilon {row['epsilon']:g}" for row in data["methods"][name])
        for name in TITLES
    ]
    said = f"a linear head on a frozen public backbone has {both[0]}; the same network trained privately from scratch "
    return Finding(f"{said}{both[1]}", "none")


EXPERIMENT = Experiment("frozen-backbone", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
