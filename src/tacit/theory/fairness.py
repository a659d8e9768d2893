"""Theorems 3.3, 3.4 and C.2 of Gupta, Poornash, Lowy and Razaviyayn (arXiv:2411.07889), with constants.

Noisy descent-ascent on F(theta, w), mu-strongly concave in w, with step sizes 1/(16 kappa l) and 1/beta_w, where
l = beta_theta + beta_thetaw^2/mu and kappa = beta_w/mu. With Delta the excess of Phi = max_w F at the initial point, D
the distance of the first duals to the best ones, and v_theta, v_w the variances of the two mean messages,

    mean over t of E||grad Phi(theta_t)||^2  <=  (496/11) kappa l Delta / T  +  (9/44) v_theta
                                                 +  (40/11) kappa beta_thetaw^2 (D^2/T + 2 v_w/beta_w^2).

Derived anew along the paper's lines, because its printed constants are hidden and its Lemma C.8 has the wrong sign and
step: one descent step on the 2l-smooth Phi; (1 - 1/kappa) from one ascent step; Young's inequality with 2 kappa - 1 for
the drift of the best duals, which are beta_thetaw/mu-Lipschitz; and a geometric sum of ratio 1 - 31/(64 kappa).

Silos draw their batches independently, so that sampling m of n records adds at most L^2/(m N) to a variance: the
paper's statement is right, though its proof shows only L^2/m. Theorem 3.3 as printed is not private; noise here is
that of the full batch (or of records clipped whole) at the exact price, both messages together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
from jax import Array

from tacit.algorithm import Params, Record
from tacit.geometry.proximal import tree_norm
from tacit.objectives import Ermi, Objective
from tacit.privacy import Condition, gdp_mu
from tacit.privacy.statements import at_most
from tacit.theory.statement import TheoryError, check_positive

PAPER = "Gupta, Poornash, Lowy and Razaviyayn (fair)"


@dataclass(frozen=True, kw_only=True)
class SaddleSetting:
    """A nonconvex-strongly-concave problem, a federation and a budget; names as in Assumption C.1.

    ``params_move`` and ``duals_move`` bound how far one protected change moves a silo's *sum* of gradients: 2 L_theta
    and 2 L_w for records, the fairness term's own sensitivities for the attribute.
    """

    params_smoothness: float
    duals_smoothness: float
    cross_smoothness: float
    concavity: float
    params_move: float
    duals_move: float
    gap: float
    diameter: float
    params_dimension: int
    duals_dimension: int
    records: int
    silos: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive(self)
        if self.concavity > self.duals_smoothness:
            raise TheoryError(
                f"Expected concavity={self.concavity:g} <= duals_smoothness={self.duals_smoothness:g}: nothing curves "
                "more than its smoothness allows."
            )

    @property
    def condition(self) -> float:
        """kappa_w = beta_w/mu."""
        return self.duals_smoothness / self.concavity

    @property
    def steepness(self) -> float:
        """l = beta_theta + beta_thetaw^2/mu; Phi is 2l-smooth."""
        return self.params_smoothness + self.cross_smoothness**2 / self.concavity


@dataclass(frozen=True, kw_only=True)
class SaddleStatement:
    """What Theorem C.2 (3.4) asks for and promises: parameters, and a bound on the mean of ||grad Phi||^2."""

    source: str
    num_rounds: int
    step_size: float
    dual_step_size: float
    noise_multiplier: float
    dual_share: float
    bound: float
    rate: float
    conditions: tuple[Condition, ...]


def stationarity_bound(
    s: SaddleSetting,
    rounds: int,
    noise_multiplier: float,
    dual_share: float = 0.5,
    sampling: tuple[float, float] = (0.0, 0.0),
) -> float:
    """The bound of the module's docstring for full batches, plus given variances from sampling."""
    params_sigma = noise_multiplier / math.sqrt(1 - dual_share) * s.params_move / s.records
    duals_sigma = noise_multiplier / math.sqrt(dual_share) * s.duals_move / s.records
    params_noise = s.params_dimension * params_sigma**2 / s.silos + sampling[0]
    duals_noise = s.duals_dimension * duals_sigma**2 / s.silos + sampling[1]
    kappa, cross = s.condition, s.cross_smoothness**2
    return (
        496 / 11 * kappa * s.steepness * s.gap / rounds
        + 9 / 44 * params_noise
        + 40 / 11 * kappa * cross * (s.diameter**2 / rounds + 2 * duals_noise / s.duals_smoothness**2)
    )


def sgda_from_theory(s: SaddleSetting) -> SaddleStatement:
    """Theorem C.2: steps, the best number of rounds for its bound, and the least noise that the budget allows."""
    mu = gdp_mu(s.epsilon, s.delta)
    # The bound is a/T + b T: both noises have a variance proportional to the number of rounds.
    still = stationarity_bound(s, 1, 0.0)
    share = _best_share(s)
    slope = stationarity_bound(s, 1, 1.0 / mu, share) - still
    rounds = max(1, round(math.sqrt(still / slope)))
    noise = math.sqrt(rounds) / mu
    bound = stationarity_bound(s, rounds, noise, share)
    log = math.log(1 / s.delta)
    kappa = s.condition
    start = math.sqrt(kappa * (s.gap * s.steepness + (s.cross_smoothness * s.diameter) ** 2))
    coupling = s.cross_smoothness * math.sqrt(kappa) / s.duals_smoothness
    spread = s.params_move * math.sqrt(s.params_dimension) + coupling * s.duals_move * math.sqrt(s.duals_dimension)
    return SaddleStatement(
        source=f"{PAPER}, Theorem C.2",
        num_rounds=rounds,
        step_size=1 / (16 * kappa * s.steepness),
        dual_step_size=1 / s.duals_smoothness,
        noise_multiplier=noise,
        dual_share=share,
        bound=bound,
        rate=start * spread / 2 * math.sqrt(log) / (s.epsilon * s.records * math.sqrt(s.silos)),
        conditions=(at_most("epsilon", s.epsilon, "2 ln(1/delta)", 2 * log),),
    )


def _best_share(s: SaddleSetting) -> float:
    """The part of the budget for the duals that makes the noise terms of the bound least: sides as root to root."""
    params = math.sqrt(9 / 44 * s.params_dimension) * s.params_move
    coupling = s.cross_smoothness / s.duals_smoothness
    duals = math.sqrt(80 / 11 * s.condition * s.duals_dimension) * coupling * s.duals_move
    return duals / (params + duals)


def steffle_setting(
    term: Ermi,
    *,
    strength: float,
    feature_norm: float,
    loss_smoothness: float,
    radius: float,
    gap: float,
    records: int,
    silos: int,
    epsilon: float,
    delta: float,
) -> SaddleSetting:
    """The constants of loss + strength x ERMI for a linear model, whose W stays in a ball of this radius around zero.

    Theorem 3.4 (C.9) treats them as constants; here they are numbers. With J and H bounds on the first and second
    derivative of the probabilities and v = 2 p_s^(-1/2) W_s - sum_r W_r^2 the factor of F in psi, ||v|| is at most
    2 D/sqrt(rho) + D^2. The protected change is that of the attribute (Theorem 3.3, corrected).
    """
    shape = term.model.linear
    if shape is None:
        raise TheoryError("Expected a linear model, whose constants are known.")
    if strength <= 0:
        raise TheoryError(f"Expected strength={strength} > 0; without it there is no saddle.")
    rarest = min(min(row) for row in term.frequencies)
    slope = term.jacobian_bound(feature_norm)
    curvature = (1 - term.classes * term.floor) * _second_derivative(shape.outputs) * (feature_norm**2 + shape.bias)
    pull = 2 * radius / math.sqrt(rarest) + radius**2
    moved = term.sensitivity(radius=radius, jacobian=slope)
    return SaddleSetting(
        params_smoothness=loss_smoothness + strength * pull * curvature,
        duals_smoothness=2 * strength,
        cross_smoothness=strength * slope * (2 * radius + 2 / math.sqrt(rarest)),
        concavity=strength * term.concavity,
        params_move=strength * moved.params,
        duals_move=strength * moved.duals,
        gap=gap,
        diameter=2 * radius,
        params_dimension=(shape.features + shape.bias) * shape.outputs,
        duals_dimension=term.init().size,
        records=records,
        silos=silos,
        epsilon=epsilon,
        delta=delta,
    )


def _second_derivative(outputs: int) -> float:
    """A bound on the second derivative of all probabilities in the outputs, as an operator.

    sqrt(2) max |sigmoid''| for one output; for a softmax p(1 - p)(1 - 2p) and its mixed terms stay below one in norm.
    """
    return math.sqrt(2) * 0.0963 if outputs == 1 else 1.0


def fermi_stationarity(
    objective: Objective, term: Ermi, params: Params, records: Record, strength: float | Array
) -> Array:
    """||grad Phi(theta)||, Phi = loss + strength x the largest psi over all W: a look at raw records.

    The best W is known in closed form, and by Danskin's theorem the gradient is that of the saddle function there. With
    the records' own frequencies in ``term`` Phi is loss + strength x the chi-squared divergence.
    """
    best = jax.lax.stop_gradient(term.best(params, records))

    def value(params: Params) -> Array:
        return objective.losses(params, records).mean() + strength * term.values(params, best, records).mean()

    return tree_norm(jax.grad(value)(params))
