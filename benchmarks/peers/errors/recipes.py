"""How everybody trains: who takes part, on which schedule, with how much noise for the common epsilon."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

EPSILON, DELTA = 1.0, 1e-5
SERVERS = ("sgd", "adam")
ADAM = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
"""Tacit's adam; the peers' servers have the same."""
MOMENTUM = 0.9
"""Of the server ``momentum``, which only a documented recipe asks for."""
SCHEDULES = ((0.1, 100), (0.5, 30))
"""What the peers choose from: the share of a silo's records in a Poisson batch, and rounds."""


class Trainer(NamedTuple):
    """A line of the figure: whose code trains, and on which of the plans below its settings are chosen."""

    title: str
    module: str
    plan: Literal["direct", "pairwise", "dp-sgd", "documented"]
    tuned: bool = True


TRAINERS = {
    "tacit": Trainer("Tacit, direct", "tacit_trainer", "direct"),
    "tacit-untuned": Trainer("Tacit, direct, defaults untouched", "tacit_trainer", "direct", tuned=False),
    "tacit-pairwise": Trainer("Tacit, pairwise", "tacit_trainer", "pairwise"),
    "opacus": Trainer("Opacus", "opacus_trainer", "dp-sgd"),
    "jax-privacy": Trainer("jax-privacy", "jax_trainer", "dp-sgd"),
    "torch-func": Trainer("torch.func", "torch_trainer", "dp-sgd"),
    "opacus-documented": Trainer("Opacus, as documented", "opacus_trainer", "documented", tuned=False),
    "jax-privacy-documented": Trainer("jax-privacy, as documented", "jax_trainer", "documented", tuned=False),
}


class Documented(NamedTuple):
    """What a peer's own example sets: the batch, passes over the records, the step, the clip, the server; and where."""

    batch: int
    passes: float
    step: float
    clip: float
    server: str
    source: str


_OPACUS = Documented(64, 10, 0.1, 1.0, "sgd", "`examples/mnist.py` of pytorch/opacus (-b 64, -n 10, --lr 0.1, -c 1.0)")
_LOGISTIC = Documented(
    1000,
    500 * 1000 / 100_000,
    0.5,
    1.0,
    "sgd",
    "`examples/dp_logistic_regression.py` of google-deepmind/jax_privacy (EXPECTED_BATCH_SIZE 1000 of 100,000 USERS, "
    "ITERATIONS 500, LEARNING_RATE 0.5, L2_CLIP_NORM 1.0; its four bands of correlated noise are not played)",
)
_MNIST = Documented(
    256,
    5000 * 256 / 60_000,
    # Its gradients are rescaled to unit norm after the clip.
    0.1 / 0.1,
    0.1,
    "momentum",
    "`examples/dp_sgd_flax_linen_mnist.py` there (expected_batch_size 256 of 60,000, train_steps 5000, learning_rate "
    "0.1 of gradients over their clip, clipping_norm 0.1, momentum 0.9)",
)
DOCUMENTED = {"opacus-documented": (_OPACUS, _OPACUS), "jax-privacy-documented": (_LOGISTIC, _MNIST)}
"""What is documented for a linear model, and for a network."""


@dataclass(frozen=True)
class Recipe:
    """One way to train. Everything is one entry per silo where silos may differ.

    ``noise`` is the deviation of the noise over the replace-one sensitivity of a clipped mean, 2 clip / batch. Means
    are over the expected batch, and those of silos count equally.
    """

    channel: Literal["direct", "pairwise"]
    sampling: Literal["full", "poisson"]
    batch: tuple[int, ...]
    rounds: int
    server: str
    output: str
    noise: tuple[float, ...]
    step: float
    clip: float

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(dataclasses.asdict(self))


def from_json(text: str) -> Recipe:
    """The recipe that ``to_json`` wrote."""
    fields = json.loads(text)
    return Recipe(**{**fields, "batch": tuple(fields["batch"]), "noise": tuple(fields["noise"])})


def checking(recipe: Recipe, records: tuple[int, ...]) -> Recipe:
    """One round on all records without noise, where everybody must move the model alike."""
    silent = {"sampling": "full", "batch": records, "noise": (0.0,) * len(records), "channel": "direct"}
    return dataclasses.replace(recipe, rounds=1, server="sgd", output="last", step=0.5, **silent)


def documented(name: str, records: tuple[int, ...], hidden: bool) -> Recipe:
    """A peer's documented settings at each silo: batches of that size, at most all records, and as many passes."""
    own = DOCUMENTED[name][hidden]
    batch = tuple(min(own.batch, count) for count in records)
    rounds = max(1, round(own.passes * max(n / b for n, b in zip(records, batch, strict=True))))
    silent = (0.0,) * len(records)
    recipe = Recipe("direct", "poisson", batch, rounds, own.server, "last", silent, own.step, own.clip)
    return with_noise(recipe, records)


def event(recipe: Recipe, records: int, silo: int, multiplier: float) -> Any:
    """What one silo releases."""
    from tacit.privacy import Event

    own: dict[str, Any] = {"records": records, "batch": recipe.batch[silo], "sampling": recipe.sampling}
    return Event(kind="gradient", noise_multiplier=multiplier, count=recipe.rounds, **own)


def with_noise(recipe: Recipe, records: tuple[int, ...]) -> Recipe:
    """The recipe with the least noise, silo by silo, that our accountant certifies for the common epsilon."""
    from tacit.privacy import calibrate

    found: dict[tuple[int, int], float] = {}
    for silo, count in enumerate(records):
        if (count, recipe.batch[silo]) not in found:
            [tuned] = calibrate([event(recipe, count, silo, 1.0)], epsilon=EPSILON, delta=DELTA)
            found[count, recipe.batch[silo]] = tuned.noise_multiplier
    return dataclasses.replace(recipe, noise=tuple(found[n, b] for n, b in zip(records, recipe.batch, strict=True)))


def certified(recipe: Recipe, records: tuple[int, ...]) -> list[float]:
    """The epsilon of every silo's records for replacing one, by our accountant."""
    from tacit.privacy import price

    return [price([event(recipe, n, i, recipe.noise[i])], delta=DELTA).epsilon for i, n in enumerate(records)]


def of_their_own(trainer: str, recipe: Recipe, records: tuple[int, ...]) -> dict[str, float] | None:
    """The noise (sigma / clip) that a peer's accountant finds for the first silo, and its epsilon for replacing one.

    Both accountants count records that are added or removed, which is an easier question.
    """
    from tacit.privacy import price

    finders = {"opacus": _opacus_noise, "jax-privacy": _jax_privacy_noise}
    peer = trainer.removesuffix("-documented")
    if peer not in finders:
        return None
    sigma = finders[peer](recipe, records[0])
    spent = price([event(recipe, records[0], 0, sigma / 2.0)], delta=DELTA)
    return {"sigma": sigma, "epsilon": spent.epsilon}


def _opacus_noise(recipe: Recipe, records: int) -> float:
    """As ``make_private_with_epsilon`` finds it."""
    from opacus.accountants.utils import get_noise_multiplier

    rate = recipe.batch[0] / records
    target = {"target_epsilon": EPSILON, "target_delta": DELTA}
    return float(get_noise_multiplier(**target, sample_rate=rate, steps=recipe.rounds, accountant="prv"))


def _jax_privacy_noise(recipe: Recipe, records: int) -> float:
    from jax_privacy.accounting import accountants, analysis, calibrate

    accountant = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig())
    return float(
        calibrate.calibrate_noise_multiplier(
            target_epsilon=EPSILON,
            target_delta=DELTA,
            accountant=accountant,
            batch_sizes=recipe.batch[0],
            num_updates=recipe.rounds,
            num_samples=records,
        )
    )
