"""The amplification that the CE-PSGM paper states for shuffled reports: Lemma 2.7, where its conditions hold.

Lemma 2.7 (A.9) says that one round of both streams, M silos that each draw B of n records, is
(alpha, 26 gamma^2 alpha rho)-RDP with gamma = B/n, rho = c e^{epsilon_0}/(MB) and c = 1536, if

    gamma <= 0.1,  rho <= 0.1,  epsilon_0 >= 1,  c >= 16 epsilon_0 ln(1/gamma),
    6 c e^{epsilon_0} <= MB ln(1/gamma),   2 <= alpha <= MB ln(1/gamma)/(4 c e^{epsilon_0}).

The appendix's version is used: the main text prints other logarithms. The proof amplifies the two streams of one batch
apart, which is wrong (they are composed first here, in `tacit.privacy.reports`); `epsilon_certified` says what the
local epsilon really buys. Full batches (gamma = 1) are outside the lemma, the paper's own experiment among them.
"""

import math

from tacit.privacy.events import PricingError, positive, probability
from tacit.privacy.statements import Condition, PaperNoise, PaperRelease, Setting
from tacit.privacy.theorems import SHUFFLED, at_least, at_most, psgm

_C = 1536.0


def lemma_conditions(local_epsilon: float, *, silos: int, records: int, batch: int) -> tuple[Condition, ...]:
    """The conditions of Lemma 2.7 with the numbers put in."""
    gamma, pooled, grown = batch / records, silos * batch, math.exp(local_epsilon)
    log = math.log(1 / gamma)
    return (
        at_most("gamma=B/n", gamma, "", 0.1),
        at_most("rho=c e^eps0/(MB)", _C * grown / pooled, "", 0.1),
        at_least("eps0", local_epsilon, "", 1.0),
        at_most("16 eps0 ln(1/gamma)", 16 * local_epsilon * log, "c", _C),
        at_most("6c e^eps0", 6 * _C * grown, "MB ln(1/gamma)", pooled * log),
        at_least("largest alpha", pooled * log / (4 * _C * grown), "", 2.0),
    )


def lemma_epsilon(local_epsilon: float, *, silos: int, records: int, batch: int, rounds: int, delta: float) -> float:
    """Epsilon of ``rounds`` rounds of both streams by Lemma 2.7 and Renyi composition; refuses outside its conditions.

    Examples:
        >>> round(lemma_epsilon(1.0, silos=1000, records=10_000, batch=500, rounds=100, delta=1e-5), 3)
        1.635
        >>> lemma_epsilon(1.0, silos=10, records=1651, batch=1651, rounds=500, delta=1e-5)
        Traceback (most recent call last):
        ...
        tacit.privacy.events.PricingError: Lemma 2.7 of CE-PSGM (shuffled model) does not hold: expected gamma=B/n=1 <= 0.1; rho=c e^eps0/(MB)=0.2529 <= 0.1; 6c e^eps0=2.505e+04 <= MB ln(1/gamma)=0; largest alpha=0 >= 2; use accountant="tight".
    """  # noqa: E501
    local_epsilon, delta = positive("local_epsilon", local_epsilon), probability("delta", delta)
    conditions = lemma_conditions(local_epsilon, silos=silos, records=records, batch=batch)
    failed = [c.text for c in conditions if not c.holds]
    if failed:
        raise PricingError(
            f'Lemma 2.7 of {SHUFFLED} does not hold: expected {"; ".join(failed)}; use accountant="tight".'
        )
    gamma, pooled, grown = batch / records, silos * batch, math.exp(local_epsilon)
    slope = rounds * 26 * gamma**2 * _C * grown / pooled
    most = pooled * math.log(1 / gamma) / (4 * _C * grown)
    alpha = min(max(1 + math.sqrt(-math.log(delta) / slope), 2.0), most)
    return slope * alpha - math.log(delta) / (alpha - 1)


def shuffled_reports(s: Setting) -> PaperNoise:
    """CE-PSGM and its settings: the largest local epsilon for which the proof of Theorem 4.1 closes.

    With alpha = 1 + 2 ln(1/delta)/eps, half of epsilon pays for the conversion; the reports get the other half, or a
    quarter where local steps have one too.
    """
    alpha, gamma, pooled = 1 + 2 * s.log / s.epsilon, s.batch_size / s.records, s.silos * s.batch_size
    share = s.epsilon / (4 if s.local_steps > 1 else 2)
    local = math.log(share * pooled / (26 * _C * s.num_rounds * gamma**2 * alpha))
    # The lemma starts at one: below it nothing is proved, and one is what its conditions are shown for.
    shown = max(local, 1.0)
    conditions = [at_least("eps0 that fits", local, "", 1.0)]
    conditions += lemma_conditions(shown, silos=s.silos, records=s.records, batch=s.batch_size)
    most = pooled * math.log(1 / gamma) / (4 * _C * math.exp(shown))
    conditions.append(at_most("alpha", alpha, "MB ln(1/gamma)/(4c e^eps0)", most))
    releases = [_reports(s, 1 / shown)]
    if s.local_steps > 1:
        steps = psgm(s)
        releases += steps.releases
        conditions += steps.conditions
    return PaperNoise(
        source=f"{SHUFFLED}, Theorem 4.1 by Lemma 2.7",
        records=s.records,
        epsilon=s.epsilon,
        delta=s.delta,
        releases=tuple(releases),
        conditions=tuple(conditions),
        correction="The two streams of a batch are composed before they are amplified.",
    )


def _reports(s: Setting, multiplier: float) -> PaperRelease:
    full = s.batch_size == s.records
    return PaperRelease(
        kind="estimate",
        noise_multiplier=multiplier,
        corrected_multiplier=multiplier,
        sensitivity=2 / s.batch_size,
        count=s.num_rounds,
        batch=s.batch_size,
        sampling="full" if full else "wor",
        mechanism="reports",
        reports=s.silos * s.batch_size,
        streams=(1.0, 1.0),
    )
