"""SteFFLe between divisions: who holds features and who holds sensitive attributes need not be the same.

Gupta, Poornash, Lowy and Razaviyayn (arXiv:2411.07889), section 4 and appendix F. Every record has a universal index.
A *features* division holds x and y of some indices; an *attributes* division holds s of some indices; what crosses is
one of three types, and nothing else can be said:

    LossGradient    features division -> server             gradient of the loss of its part of the batch
    Outputs         features division -> attributes ones    index, target, probabilities F and their Jacobian
    FairGradients   attributes division -> server           gradients of the fairness term, with noise

The first two are functions of x and y, which this definition of privacy counts as known; only the third is made of s,
and it leaves through the silo layer, noise and all. An attributes division divides its sum by the size of the whole
batch: its noise then has the scale of its *share* of it, and one whose share is empty says noise that looks the same.

This is a plain loop that shows what crosses; the compiled simulation gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Params, Record, Silo
from tacit.errors import TacitError
from tacit.objectives import Ermi, Problem
from tacit.silo import privatise, view_of


class LossGradient(NamedTuple):
    """From features to server: the sum of gradients of the loss over a part of the batch. Never made of s."""

    total: Params


class Outputs(NamedTuple):
    """From features to attributes: of each record of the batch its index, and what the term needs beside s."""

    record: np.ndarray
    target: Array
    chances: Array
    jacobian: Params


class FairGradients(NamedTuple):
    """From attributes to server: gradients of the fairness term over the batch size, with noise."""

    params: Params
    duals: Array


@dataclass(frozen=True)
class FeaturesDivision:
    """Holds x and y of the records of ``index``."""

    name: str
    index: np.ndarray
    x: np.ndarray
    y: np.ndarray

    def loss_gradient(self, problem: Problem, params: Params, batch: np.ndarray) -> LossGradient:
        """What it tells the server about its part of a batch."""
        records = self._own(batch)
        return LossGradient(jax.grad(lambda p: problem.objective.losses(p, records).sum())(params))

    def outputs(self, term: Ermi, params: Params, batch: np.ndarray) -> Outputs:
        """What it tells the attributes divisions about its part of a batch."""
        records = self._own(batch)
        jacobian = jax.vmap(lambda x: jax.jacrev(lambda p: term.probabilities(p, x[None])[0])(params))(records["x"])
        index = self.index[np.isin(self.index, batch)]
        return Outputs(index, records["y"], term.probabilities(params, records["x"]), jacobian)

    def _own(self, batch: np.ndarray) -> Record:
        mine = np.isin(self.index, batch)
        return {"x": jnp.asarray(self.x[mine]), "y": jnp.asarray(self.y[mine])}


@dataclass(frozen=True)
class AttributesDivision:
    """Holds s of the records of ``index``, and a key of its own."""

    name: str
    index: np.ndarray
    s: np.ndarray
    key: Array

    def gradients(
        self, term: Ermi, silo: Silo, work: Any, strength: Any, heard: Sequence[Outputs], size: int, number: int
    ) -> FairGradients:
        """What it tells the server: its records' part of both gradients, over the size of the whole batch.

        Formal guarantee: the Gaussian mechanism with the release's noise multiplier for the sensitive attribute of
        each of its records, once for each batch that has the record. With no record in the batch it is noise alone.
        """
        index = np.concatenate([part.record for part in heard])
        if len(np.unique(index)) != len(index):
            raise TacitError("Expected every index of a batch once; a record that came twice would count twice.")
        mine = np.flatnonzero(np.isin(index, self.index))
        # One absent row keeps shapes positive where there is nothing to add.
        rows = mine if len(mine) else np.zeros(1, int)
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[rows], *(part[1:] for part in heard))
        records = dict(zip(("y", "chances", "jacobian"), joined, strict=True))
        order = np.argsort(self.index)
        found = order[np.clip(np.searchsorted(self.index[order], index[rows]), 0, len(self.index) - 1)]
        records["s"] = jnp.asarray(self.s[found], jnp.int32)
        release = replace(silo.release, batch_size=size, sampling="full", passes=1)
        speaker = Silo(lambda work, record: _fair(term, work, strength, record), release)
        desk = view_of(records, len(mine), None, 0)
        said, _ = privatise(
            speaker, work, desk, keys=jax.random.split(jax.random.fold_in(self.key, number)), position=0
        )
        return FairGradients(said["params"], said["duals"])


def _fair(term: Ermi, work: Any, strength: Any, record: Record) -> dict[str, Any]:
    """Gradients of the fairness term of one record, from what crossed and its s."""
    batch = jax.tree.map(lambda leaf: leaf[None], record)

    def value(chances: Array) -> Array:
        return term.values_at(chances[None], work.duals, batch, work.frequencies)[0]

    pull = strength * jax.grad(value)(record["chances"])
    params = jax.tree.map(lambda leaf: jnp.tensordot(pull, leaf, 1), record["jacobian"])
    duals = term.dual_gradients_at(batch["chances"], work.duals, batch, work.frequencies)[0]
    return {"params": params, "duals": duals}


def train_divided(
    algorithm: Algorithm,
    problem: Problem,
    term: Ermi,
    features: Sequence[FeaturesDivision],
    attributes: Sequence[AttributesDivision],
    params: Params,
    *,
    strength: Any,
    batches: Sequence[np.ndarray] | None = None,
) -> Params:
    """Run SteFFLe between divisions; ``algorithm`` gives schedule, server half, clips and noise.

    ``batches`` are public indices, one for each round (default: everything in every round). A record's attribute pays
    for every batch that it is in.
    """
    if set(algorithm.rounds) != {"step"} or algorithm.rounds["step"].silo.release.protects != "sensitive-attribute":
        raise TacitError(
            'Expected steffle with protects="sensitive-attribute", declared frequencies and sampling "full" or '
            '"one-pass" between divisions.'
        )
    everything = np.concatenate([part.index for part in features])
    known = np.concatenate([part.index for part in attributes])
    for name, index in (("features", everything), ("attributes", known)):
        if len(np.unique(index)) != len(index):
            raise TacitError(f"Expected every index in one {name} division, got some in several.")
    if set(everything.tolist()) != set(known.tolist()):
        raise TacitError("Expected the same indices among features and attributes; leave out records without either.")
    step, state = algorithm.rounds["step"], algorithm.init(params)

    def play(state: Any, number: Any, batch: np.ndarray) -> Any:
        work = step.server.ask(state)
        losses = [part.loss_gradient(problem, work.params, batch).total for part in features]
        heard = [part.outputs(term, work.params, batch) for part in features]
        said = [part.gradients(term, step.silo, work, strength, heard, len(batch), number) for part in attributes]
        total = jax.tree.map(lambda *leaves: sum(leaves) / len(batch), *losses)
        fair = jax.tree.map(lambda *leaves: sum(leaves), *said)
        message = {"params": jax.tree.map(jnp.add, total, fair.params), "duals": fair.duals}
        return step.server.tell(state, message)

    whole = jax.jit(partial(play, batch=everything))
    for number in range(len(algorithm.schedule)):
        state = (whole if batches is None else jax.jit(partial(play, batch=batches[number])))(state, number)
    return algorithm.output(state)
