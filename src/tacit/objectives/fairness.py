"""The chi-squared (ERMI) fairness term as a saddle point that is an average over records.

Lowy, Baharlouei, Pavan, Razaviyayn and Beirami (arXiv:2102.12586) measure how far predictions depend on a sensitive
attribute by D(Yhat; S) = sum_{u,r} p(u, r)^2 / (p(u) p(r)) - 1, which is zero exactly under independence, and write it
as an average over records, so that silos can compute it without pooling their records: with F the probabilities that
the model gives to the classes,

    D = max over W of the mean of psi,      psi(theta, W; x, s) = -sum_{r,u} W_ru^2 F_u + 2 p_s^(-1/2) <W_s, F> - 1.

*Equalized odds* asks for independence given the target: W has one matrix for each target and the frequencies are those
of the attribute given the target; the maximum is sum_y p(y) D(Yhat; S | Y = y). *Equal opportunity* keeps only the term
of one favourable target. Training minimises loss + strength x psi over theta and maximises it over W.

psi is strongly concave in W with modulus 2 min_u F_u, which vanishes as a softmax saturates. So F is floored: it is
(1 - l floor) softmax + floor for l classes, the prediction of a model that answers at random with probability l floor.

    paper   here
    -----   ----
    W       duals, (conditions, groups, classes)
    P_S     frequencies: public, or released once with noise; never the raw frequencies of private records
    F       probabilities
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Params, Record
from tacit.errors import TacitError
from tacit.objectives.objective import Loss, Model, Tap, untapped

Notion = Literal["demographic-parity", "equalized-odds", "equal-opportunity"]
Frequencies = Sequence[float] | Sequence[Sequence[float]]
"""How often each group is: one row, or one for each target."""


class Sensitivity(NamedTuple):
    """How far a *sum* of gradients of psi moves when the sensitive attribute of one record changes."""

    duals: float
    params: float


@dataclass(frozen=True)
class Ermi:
    """The term for one model and one notion of fairness; records have fields ``x``, ``y`` and ``s``.

    ``frequencies`` has one row for each condition: one row of p(s) for demographic parity, p(s | y) for each target y
    for equalized odds, p(s | y = favourable) for equal opportunity. A model with one output stands for two classes.
    """

    model: Model
    classes: int
    frequencies: tuple[tuple[float, ...], ...]
    notion: Notion = "demographic-parity"
    floor: float = 1e-3
    favourable: int = 1

    def __post_init__(self) -> None:
        rows = self.classes if self.notion == "equalized-odds" else 1
        if len(self.frequencies) != rows or len({len(row) for row in self.frequencies}) != 1:
            raise TacitError(
                f"Expected {rows} rows of frequencies of equal length for {self.notion}, got {len(self.frequencies)}."
            )
        for row in self.frequencies:
            if min(row) <= 0 or not math.isclose(sum(row), 1.0, abs_tol=1e-6):
                raise TacitError(f"Expected frequencies={row} to be above 0 and to sum to 1; leave out empty groups.")
        if not 0 <= self.floor < 1 / self.classes:
            raise TacitError(f"Expected 0 <= floor={self.floor} < 1/classes={1 / self.classes:.3g}.")

    @property
    def concavity(self) -> float:
        """The modulus of strong concavity of the mean of psi in the duals of a condition that every record meets."""
        return 2.0 * self.floor

    @property
    def longest(self) -> float:
        """The largest norm of floored probabilities: those of a prediction that is as sure as it can be."""
        others = (self.classes - 1) * self.floor
        return math.sqrt((1.0 - others) ** 2 + others * self.floor)

    def init(self) -> Array:
        """Duals to start from: zero."""
        return jnp.zeros((len(self.frequencies), len(self.frequencies[0]), self.classes))

    def probabilities(self, params: Params, x: Array, tap: Tap = untapped) -> Array:
        """The floored probabilities of the classes, (records, classes)."""
        return self.chances(self.model.apply(params, x, tap))

    def chances(self, outputs: Array) -> Array:
        """The floored probabilities of the classes from the model's outputs."""
        if outputs.shape[1] == 1 and self.classes == 2:
            plain = jnp.concatenate([jax.nn.sigmoid(-outputs), jax.nn.sigmoid(outputs)], axis=1)
        elif outputs.shape[1] == self.classes:
            plain = jax.nn.softmax(outputs, axis=1)
        else:
            raise TacitError(f"Expected a model with classes={self.classes} outputs, got {outputs.shape[1]}.")
        return (1.0 - self.classes * self.floor) * plain + self.floor

    def values(self, params: Params, duals: Array, records: Record, tap: Tap = untapped) -> Array:
        """psi of each record; zero for records outside the condition."""
        return self.values_at(self.probabilities(params, records["x"], tap), duals, records)

    def values_at(self, chances: Array, duals: Array, records: Record, frequencies: Array | None = None) -> Array:
        """psi of each record from the model's floored probabilities; frequencies may be given anew."""
        table = jnp.asarray(self.frequencies if frequencies is None else frequencies, chances.dtype)
        # One-hot products, not indexing: their gradients are products too.
        cells, groups = self._one_hot(records, chances.dtype)
        scale = jnp.einsum("nc,nr,cr->n", cells, groups, 1.0 / jnp.sqrt(table))
        chosen = jnp.einsum("nc,nr,cru->nu", cells, groups, duals)
        spread = jnp.einsum("nc,cu,nu->n", cells, jnp.sum(duals**2, axis=1), chances)
        psi = 2.0 * scale * jnp.sum(chosen * chances, axis=1) - spread - 1.0
        return jnp.where(self._condition(records["y"])[1], psi, 0.0)

    def dual_gradients_at(
        self, chances: Array, duals: Array, records: Record, frequencies: Array | None = None
    ) -> Array:
        """Each record's gradient of psi in the duals: -2 W diag(F) + 2 p_s^(-1/2) e_s F^T in its own condition."""
        table = jnp.asarray(self.frequencies if frequencies is None else frequencies, chances.dtype)
        cells, groups = self._one_hot(records, chances.dtype)
        pull = 2.0 * cells[:, :, None] * (groups[:, None, :] / jnp.sqrt(table))
        return (pull[..., None] - 2.0 * cells[:, :, None, None] * duals) * chances[:, None, None, :]

    def value(self, params: Params, duals: Array, record: Record) -> Array:
        """psi of one record; its gradients with respect to params and duals are what silos release."""
        return self.values(params, duals, jax.tree.map(lambda leaf: leaf[None], record))[0]

    def cell(self, record: Record) -> Array:
        """One for the condition and group of a record, zero elsewhere: its entry in a histogram."""
        cells, groups = self._one_hot(record, float)
        return cells[:, None] * groups[None, :]

    def best(self, params: Params, records: Record) -> Array:
        """The duals that maximise the mean of psi over these records: a look at raw records, for tests and metrics."""
        chances = self.probabilities(params, records["x"])
        cells, groups = self._one_hot(records, chances.dtype)
        joint = jnp.einsum("nc,nr,nu->cru", cells, groups, chances)
        scale = 1.0 / jnp.sqrt(jnp.asarray(self.frequencies, chances.dtype))[:, :, None]
        total = jnp.einsum("nc,nu->cu", cells, chances)[:, None, :]
        return scale * joint / jnp.where(total > 0, total, 1.0)

    def sensitivity(self, *, radius: float, jacobian: float, box: bool = False) -> Sensitivity:
        """How far a sum of gradients moves when one record's ``s`` changes, and nothing else.

        ``radius`` bounds the Frobenius norm of the duals, or every entry if ``box``; ``jacobian`` bounds the operator
        norm of the derivative of the probabilities with respect to all parameters. Divide by the batch size for a mean.

        Formal guarantee: for two groups of frequencies p and q the gradients of psi move by at most

            duals     2 sqrt(1/p + 1/q) max ||F||
            params    2 jacobian radius sqrt(1/p + 1/q),  or  2 jacobian radius sqrt(classes) (p^(-1/2) + q^(-1/2))

        and the two rarest groups of a condition are the worst; ``y`` is not protected, so conditions do not mix. The
        bounds are met with equality (corrected from Gupta et al., arXiv:2411.07889, which states the squared norm, and
        the ball's bound for the box).
        """
        rare = [sorted(row)[:2] for row in self.frequencies if len(row) > 1]
        spread = max((math.sqrt(1 / p + 1 / q) for p, q in rare), default=0.0)
        steepest = max((1 / math.sqrt(p) + 1 / math.sqrt(q) for p, q in rare), default=0.0)
        reach = math.sqrt(self.classes) * steepest if box else spread
        return Sensitivity(2.0 * spread * self.longest, 2.0 * jacobian * radius * reach)

    def jacobian_bound(self, feature_norm: float) -> float:
        """The largest operator norm of the derivative of the probabilities, for a linear model."""
        shape = self.model.linear
        if shape is None:
            raise TacitError("Expected a linear model, whose Jacobian is known; clip the gradients of other models.")
        steepest = 2**0.5 / 4 if shape.outputs == 1 else 0.5
        return (1.0 - self.classes * self.floor) * steepest * math.sqrt(feature_norm**2 + shape.bias)

    def steepness(self, lipschitz: float | None, cost: Loss) -> float | None:
        """The same from the Lipschitz constant of the loss; ``None`` where that, its slope or the model is not known.

        The constant is that of the loss in its output times the norm of the features, bias included.
        """
        shape = self.model.linear
        if lipschitz is None or not isinstance(cost.slope, float | int) or shape is None:
            return None
        return self.jacobian_bound(math.sqrt(max((lipschitz / cost.slope) ** 2 - shape.bias, 0.0)))

    def _one_hot(self, records: Record, dtype: Any) -> tuple[Array, Array]:
        """Condition and group of each record; all zero is the condition of a record that takes no part."""
        condition, counts = self._condition(records["y"])
        cells = jax.nn.one_hot(condition, len(self.frequencies), dtype=dtype) * counts[..., None]
        return cells, jax.nn.one_hot(records["s"], len(self.frequencies[0]), dtype=dtype)

    def _condition(self, targets: Array) -> tuple[Array, Array]:
        """Which matrix of the duals is a record's own, and whether the record takes part."""
        targets = targets.astype(jnp.int32)
        if self.notion == "equalized-odds":
            return targets, jnp.ones(targets.shape, bool)
        if self.notion == "equal-opportunity":
            return jnp.zeros_like(targets), targets == self.favourable
        return jnp.zeros_like(targets), jnp.ones(targets.shape, bool)


def ermi(
    model: Model,
    classes: int,
    frequencies: Frequencies,
    *,
    notion: Notion = "demographic-parity",
    floor: float = 1e-3,
    favourable: int = 1,
) -> Ermi:
    """The chi-squared fairness term, from public frequencies of the groups (one row, or one row for each target).

    >>> from tacit.objectives import linear
    >>> ermi(linear(3, 1), 2, (0.25, 0.75)).init().shape
    (1, 2, 2)
    """
    table = np.atleast_2d(np.asarray(frequencies, np.float64))
    return Ermi(model, classes, tuple(tuple(row) for row in table.tolist()), notion, floor, favourable)
