"""The noise that the papers' theorems print, what it really buys, and what is needed.

For each algorithm: the theorem's noise as printed and as corrected, the conditions it is stated under with
the numbers put in, the certified epsilon at the printed noise, and the noise that the requested epsilon needs
under the tight accountant. A ratio above 1 says that the theorem adds that many times too much noise; below
1, that its noise is not enough. Sigmas are in units of the clip bound (the theorems' Lipschitz constant).

References:
    Lowy, Ghafelebashi, Razaviyayn. Private non-convex federated learning without a trusted server.
    Lowy, Razaviyayn. Private federated learning without a trusted server: optimal algorithms for convex
    losses.
    Reshef, Levy. Private and federated stochastic convex optimization: efficient strategies for centralized
    systems.
    Gupta, Poornash, Lowy, Razaviyayn. A stochastic optimization framework for private and fair learning from
    decentralized data.
    Anonymous. Efficient private federated non-convex optimization with shuffled model (CE-PSGM).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tacit.privacy.calibration import calibrate
from tacit.privacy.events import Sampling
from tacit.privacy.statements import Condition, PaperNoise, PaperRelease, Setting, at_least, at_most

NONCONVEX = "Lowy, Ghafelebashi, Razaviyayn (non-convex)"
CONVEX = "Lowy, Razaviyayn (convex)"
SHUFFLED = "CE-PSGM (shuffled model)"
LEMMA_C = 1536.0
"""The constant c of Lemma 2.7 of CE-PSGM."""


def multi_pass(s: Setting) -> PaperNoise:
    """Noisy minibatch SGD, also accelerated: sigma^2 = 256 L^2 R ln(2.5R/delta) ln(2/delta) / (n eps)^2.

    For local SGD every noisy local step counts as a round.
    """
    r = s.num_rounds * s.local_steps
    least = s.epsilon * s.records / (4 * math.sqrt(2 * r * math.log(2 / s.delta)))
    sigma = math.sqrt(256 * r * math.log(2.5 * r / s.delta) * math.log(2 / s.delta)) / (s.records * s.epsilon)
    return _noise(
        s,
        f"{CONVEX}, Theorem 2.1",
        [_release("gradient", sigma, sigma, 2 / s.batch_size, r, s.batch_size, s.sampling or "wr")],
        [
            at_most("epsilon", s.epsilon, "ln(2/delta)", math.log(2 / s.delta)),
            at_least("batch", s.batch_size, "eps n / (4 sqrt(2R ln(2/delta)))", least),
        ],
        "Holds as printed; advanced composition makes it loose."
        + (" Stated for one step per round; here each local step counts as a round." if s.local_steps > 1 else ""),
    )


def multi_pass_experiments(s: Setting) -> PaperNoise:
    """What the convex paper's experiments add: sigma^2 = 8 L^2 R ln(1/delta) / (n eps)^2."""
    sigma = math.sqrt(8 * s.num_rounds * s.log) / (s.records * s.epsilon)
    return _noise(
        s,
        f"{CONVEX}, experiments",
        [_release("gradient", sigma, sigma, 2 / s.batch_size, s.num_rounds, s.batch_size, s.sampling or "wr")],
        [],
        "Rests on Abadi et al., Theorem 1, whose constants are not stated; fails for large epsilon.",
    )


def one_pass_accelerated(s: Setting) -> PaperNoise:
    """One-pass accelerated noisy SGD: sigma^2 = 8 L^2 ln(1.25/delta) / (eps K)^2 (K = 1 in the paper)."""
    sigma = math.sqrt(8 * math.log(1.25 / s.delta)) / (s.epsilon * s.batch_size)
    return _noise(
        s,
        f"{CONVEX}, Theorem 2.2",
        [_release("gradient", sigma, sigma, 2 / s.batch_size, s.num_rounds, s.batch_size, "one-pass")],
        [at_most("epsilon", s.epsilon, "", 1.0), _one_pass(s)],
        "Holds as printed.",
    )


def prox_sgd(s: Setting) -> PaperNoise:
    """Prox-SGD, one pass: sigma^2 = 8 L^2 ln(1/delta) / (eps K)^2."""
    sigma = math.sqrt(8 * s.log) / (s.epsilon * s.batch_size)
    return _noise(
        s,
        f"{NONCONVEX}, Theorem E.1",
        [_release("gradient", sigma, math.sqrt(2) * sigma, 2 / s.batch_size, s.num_rounds, s.batch_size, "one-pass")],
        [
            at_most("epsilon", s.epsilon, "min(8 ln(1/delta), 15)", min(8 * s.log, 15.0)),
            at_most("epsilon", s.epsilon, "2 ln(1/delta) (of its Proposition D.2)", 2 * s.log),
            _one_pass(s),
        ],
        "Its own Proposition D.2 gives 16 instead of 8; 8 is enough only up to epsilon of about 8.4.",
    )


def prox_svrg(s: Setting) -> PaperNoise:
    """Prox-SVRG: E = R/Q full gradients and R differences of K records, S times; R = num_rounds / S."""
    restarts, batch = s.restarts, s.difference_batch_size or s.batch_size
    rounds, sampling = s.num_rounds // restarts, s.difference_sampling or s.sampling or "wr"
    epochs = math.ceil(rounds / (s.phase_length or max(1, s.records // batch)))
    log2, scale = math.log(2 / s.delta), s.records * s.epsilon
    anchor = math.sqrt(256 * restarts * epochs * log2 * math.log(5 * epochs / s.delta)) / scale
    anchor_fixed = math.sqrt(256 * restarts * epochs * log2 * math.log(5 * restarts * epochs / s.delta)) / scale
    step = math.sqrt(1024 * restarts * rounds * log2 * math.log(2.5 * rounds / s.delta)) / scale
    step_fixed = math.sqrt(4096 * restarts * rounds * log2 * math.log(5 * restarts * rounds / s.delta)) / scale
    least = s.epsilon * s.records / (4 * math.sqrt(2 * restarts * rounds * log2))
    return _noise(
        s,
        f"{NONCONVEX}, Theorem E.2",
        [
            _release("anchor", anchor, anchor_fixed, 2 / s.records, restarts * epochs, s.records, "full"),
            _release("difference", step, step_fixed, 4 / batch, restarts * rounds, batch, sampling),
        ],
        [
            at_most("epsilon", s.epsilon, "min(2 ln(2/delta), 15)", min(2 * log2, 15.0)),
            at_least("batch", batch, "eps n / (4 sqrt(2SR ln(2/delta)))", least),
        ],
        "Uses 8L^2 where the sensitivity 4L/K asks for 32L^2, and logarithms that ignore S; its own route "
        "gives 4096 and ln(5SR/delta). Harmless, because advanced composition is about 20 times too loose.",
    )


def prox_spider(s: Setting) -> PaperNoise:
    """Prox-SPIDER, full batch: R+1 releases, rounds 0 to R; every q-th is a gradient, the others are differences."""
    phase = s.phase_length or 1
    resets = math.ceil((s.num_rounds + 1) / phase)
    gradient = 2 * math.sqrt(s.log * max(s.num_rounds / phase, 1.0)) / s.epsilon
    difference = 2 * math.sqrt(s.num_rounds * s.log) / s.epsilon
    sens, root2, n = 2 / s.records, math.sqrt(2), s.records
    releases = [_release("gradient", gradient * sens, root2 * gradient * sens, sens, resets, n, "full")]
    if s.num_rounds + 1 > resets:
        count = s.num_rounds + 1 - resets
        releases.append(_release("difference", difference * sens, root2 * difference * sens, sens, count, n, "full"))
    return _noise(
        s,
        f"{NONCONVEX}, Theorem F.1",
        releases,
        [at_most("epsilon", s.epsilon, "2 ln(1/delta)", 2 * s.log)],
        "Each of the two kinds spends the whole zCDP budget, so both variances must double. The sigma of a "
        "difference is in units of its own clip, min(C_s |dw|, 2C).",
    )


def mu2_sgd(s: Setting) -> PaperNoise:
    """DP-mu^2: sigma^2 = 4 S^2 T / rho^2 with rho^2/2 + rho sqrt(2 ln(1/delta)) = eps."""
    rho = math.sqrt(2 * s.log + 2 * s.epsilon) - math.sqrt(2 * s.log)
    sigma, sens = 2 * math.sqrt(s.num_rounds) / (rho * s.batch_size), 2 / s.batch_size
    return _noise(
        s,
        "Reshef, Levy (DP-mu^2), Theorem 5.2 and Lemma 2.5",
        [_release("increment", sigma, sigma, sens, s.num_rounds, s.batch_size, "one-pass", mechanism="cumulative")],
        [_one_pass(s)],
        "S = G + 2LD bounds the increments for an honest server only; clip the increments to S at the silo.",
    )


def steffle(s: Setting) -> PaperNoise:
    """SteFFLe, two messages per step, sensitive attributes protected."""
    joint = s.batch_size * math.sqrt(s.num_rounds * s.log) / (s.records * s.epsilon)
    sampling = s.sampling or "one-pass"
    passes = math.ceil(s.num_rounds * s.batch_size / s.records) if sampling == "one-pass" else 1
    terms = {"passes": passes, "protects": "sensitive-attribute"}
    sens = 2 * math.sqrt(2) / s.batch_size
    release = PaperRelease("fairness", joint, joint, sens, s.num_rounds, s.batch_size, sampling, 2, terms)
    [corrected] = calibrate([release.event(s.records, joint)], epsilon=s.epsilon, delta=s.delta)
    release = dataclasses.replace(release, corrected_multiplier=corrected.noise_multiplier)
    least = (s.records * math.sqrt(s.epsilon) / (2 * s.batch_size)) ** 2
    return _noise(
        s,
        "Gupta, Poornash, Lowy, Razaviyayn (SteFFLe), Theorem 3.3",
        [release],
        [
            at_most("epsilon", s.epsilon, "2 ln(1/delta)", 2 * s.log),
            at_least("rounds", s.num_rounds, "(n sqrt(eps) / 2m)^2", least),
        ],
        "Each message takes the whole budget, and amplification is void: the un-noised gradient reveals the "
        "batch. In fixed epochs a record is used ceil(Tm/n) times. Sensitivity in units of 1/sqrt(rho).",
    )


def psgm(s: Setting) -> PaperNoise:
    """CE-PSGM, local steps of the silo in turn: sigma^2 = 96 J (1 + 2 ln(1/delta)/eps) / (n^2 eps)."""
    steps = s.local_steps * math.ceil(s.num_rounds / s.silos)
    batch = s.local_batch_size or s.batch_size
    alpha, rate = 1 + 2 * s.log / s.epsilon, batch / s.records
    sigma = math.sqrt(96 * steps * alpha / s.epsilon) / s.records
    most = (sigma * batch) ** 2 * math.log(1 / rate) / 2
    return _noise(
        s,
        f"{SHUFFLED}, Theorem 4.1, local updates only",
        [_release("local", sigma, sigma, 2 / batch, steps, batch, "full" if batch == s.records else "wor")],
        [
            at_most("batch/n", rate, "", 0.1),
            at_least("batch*sigma", batch * sigma, "2 sqrt(5)", 2 * math.sqrt(5)),
            at_most("alpha", alpha, "sigma^2 b^2 ln(n/b)/2", most),
        ],
        "The local updates' quarter of the budget only; the first local difference is 0 and costs nothing.",
    )


def shuffled_reports(s: Setting) -> PaperNoise:
    """CE-PSGM and its settings: the largest local epsilon for which the proof of Theorem 4.1 closes.

    With alpha = 1 + 2 ln(1/delta)/eps, half of epsilon pays for the conversion; the reports get the other half, or a
    quarter where local steps have one too. The proof amplifies the two streams of one batch apart, which is wrong;
    `tacit.privacy.reports` composes them first.
    """
    alpha, gamma, pooled = 1 + 2 * s.log / s.epsilon, s.batch_size / s.records, s.silos * s.batch_size
    share = s.epsilon / (4 if s.local_steps > 1 else 2)
    local = math.log(share * pooled / (26 * LEMMA_C * s.num_rounds * gamma**2 * alpha))
    # The lemma starts at one: below it nothing is proved, and one is what its conditions are shown for.
    shown = max(local, 1.0)
    conditions = [at_least("eps0 that fits", local, "", 1.0)]
    conditions += lemma_conditions(shown, silos=s.silos, records=s.records, batch=s.batch_size)
    most = pooled * math.log(1 / gamma) / (4 * LEMMA_C * math.exp(shown))
    conditions.append(at_most("alpha", alpha, "MB ln(1/gamma)/(4c e^eps0)", most))
    sampling: Sampling = "full" if s.batch_size == s.records else "wor"
    terms = {"mechanism": "reports", "reports": pooled, "streams": (1.0, 1.0)}
    multiplier, sens = 1 / shown, 2 / s.batch_size
    both = PaperRelease("estimate", multiplier, multiplier, sens, s.num_rounds, s.batch_size, sampling, terms=terms)
    releases = [both]
    if s.local_steps > 1:
        steps = psgm(s)
        releases += steps.releases
        conditions += steps.conditions
    correction = "The two streams of a batch are composed before they are amplified."
    return _noise(s, f"{SHUFFLED}, Theorem 4.1 by Lemma 2.7", releases, conditions, correction)


def lemma_conditions(local_epsilon: float, *, silos: int, records: int, batch: int) -> tuple[Condition, ...]:
    """The conditions of Lemma 2.7 of CE-PSGM (its appendix's A.9; the main text prints other logarithms).

    One round of both streams, M silos that each draw B of n records, is (alpha, 26 gamma^2 alpha rho)-RDP with
    gamma = B/n, rho = c e^{epsilon_0}/(MB) and c = 1536, if

        gamma <= 0.1,  rho <= 0.1,  epsilon_0 >= 1,  c >= 16 epsilon_0 ln(1/gamma),
        6 c e^{epsilon_0} <= MB ln(1/gamma),   2 <= alpha <= MB ln(1/gamma)/(4 c e^{epsilon_0}).

    Full batches (gamma = 1) are outside the lemma, the paper's own experiment among them.
    """
    gamma, pooled, grown = batch / records, silos * batch, math.exp(local_epsilon)
    log = math.log(1 / gamma)
    return (
        at_most("gamma=B/n", gamma, "", 0.1),
        at_most("rho=c e^eps0/(MB)", LEMMA_C * grown / pooled, "", 0.1),
        at_least("eps0", local_epsilon, "", 1.0),
        at_most("16 eps0 ln(1/gamma)", 16 * local_epsilon * log, "c", LEMMA_C),
        at_most("6c e^eps0", 6 * LEMMA_C * grown, "MB ln(1/gamma)", pooled * log),
        at_least("largest alpha", pooled * log / (4 * LEMMA_C * grown), "", 2.0),
    )


def _noise(
    s: Setting, source: str, releases: Sequence[PaperRelease], conditions: Sequence[Condition], correction: str
) -> PaperNoise:
    return PaperNoise(source, s.records, s.epsilon, s.delta, tuple(releases), tuple(conditions), correction)


def _release(
    kind: str,
    sigma: float,
    corrected: float,
    sensitivity: float,
    count: int,
    batch: int,
    sampling: Sampling,
    **terms: Any,
) -> PaperRelease:
    multipliers = sigma / sensitivity, corrected / sensitivity
    return PaperRelease(kind, *multipliers, sensitivity, count, batch, sampling, terms=terms)


def _one_pass(s: Setting) -> Condition:
    return at_most("rounds*batch", s.num_rounds * s.batch_size, "n", s.records)
