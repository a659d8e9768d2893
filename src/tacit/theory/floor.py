r"""What no protocol can beat: lower bounds on excess risk with all their constants.

They hold for every protocol, however many its rounds and whatever one round spends: a silo's message may depend on its
own records and on all that was said before. Theorem 3.1 of Lowy and Razaviyayn has the same form for a smaller class,
up to a hidden constant (`tacit.theory.convex.lower_bound`). With that constant set to one it is the larger number: what
is gained for (epsilon, delta)-DP is explicit constants, and protocols and sizes that its conditions leave out. Only
within Gaussian DP, which is fewer protocols, do the bounds here rise above it.

*Problem.* A record is v/sqrt d with signs v in {-1, 1}^d of mean theta, whose coordinates are drawn independently with
density proportional to (1 - t^2)^(k-1), of variance V = 1/(2k+1). The loss is -L<w, x> on a ball of radius D. With
u = w/D the excess risk is L D (|theta| - <u, theta>)/sqrt d. Strongly convex: (mu/2)|w|^2 - l<w, x>, l = L - mu D.

1. *Score.* Let Y be the transcript, S_i the sum of v - theta over the records of silo i, s_i = E[S_i | Y, theta] and
   s their sum. Given Y and theta the silos' records are independent: silo i's messages depend on its own records and on
   Y alone. So E<s_i, s_j> = E<S_i, S_j> = 0, and E|s|^2 is the sum of J_i = E|s_i|^2 <= E|S_i|^2 = n d (1 - V).
2. *Privacy.* J_i = E<s_i, S_i> is a sum over records of E f, f = <s_i, v - theta>. With Y' from a fresh copy of this
   record E f(Y') = 0 and E f(Y')^2 <= J_i. If the laws P, Q of Y, Y' given all records have chi^2(P|Q) <= c^2 then
   E_P f - E_Q f <= c sqrt(E_Q f^2), so J_i <= n c sqrt(J_i): J_i <= n^2 c^2. For mu-GDP c^2 = exp(mu^2) - 1, that of
   two Gaussians. For epsilon-DP, c = 2 sinh(epsilon/2). With delta, P and Q are such a pair but for a share delta
   (Kairouz, Oh and Viswanath), in which |f| <= 4 n d: J_i <= n c sqrt(J_i) + 8 delta d n^2; solve for J_i.
3. *van Trees.* By parts, E<u, theta> = E<u, s>/(2k) for all u of Y. So theta - s/(2k) has mean zero given Y, and Cauchy
   and Schwarz against it give E|theta - E[theta|Y]|^2 >= d V^2/(V + q), with q = E|s|^2/(4 k^2 d). So
   E<u, theta> <= sqrt(d) rho, rho^2 = V q/(V + q).
4. The excess risk is at least L D (kappa - rho), where kappa = E|theta|/sqrt d is at least E|theta_1|, and at least
   sqrt(V)/sqrt(1 + (E theta_1^4/V^2 - 1)/d) by Hoelder. Strongly convex: (l^2/2 mu)(V - rho^2), where theta in
   [-t, t]^d, t = min(1, mu D/l), keeps the optimum in the ball: its density is that of t times theta above, v - theta
   has the factor (t^2 - theta^2)/(1 - theta^2) <= t^2 in steps 1 to 3, V becomes t^2 V and q becomes t^4 q.
5. *Empirical risk.* Only m records of each silo are drawn, the others are zero. The mean of those drawn differs from
   theta by S/(mN): a share m/n of 4, its square if strongly convex, with rho + sqrt(E|s|^2/d)/(mN) in place of
   rho. There m/n <= min(1, mu D/l) keeps the optimum in the ball.

Every k and m, and every smaller d, gives a bound; the largest is taken. Where somebody is trusted with more than
transcripts, all records are those of one silo in steps 1 and 2.

References: Gill and Levit 1995 (van Trees); Barnes, Chen and Oezguer, arXiv:2005.10783 (Fisher information of private
messages); Cai, Wang and Zhang, arXiv:2303.07152 (score attack); Acharya, Canonne, Sun and Tyagi, arXiv:2010.06562
(interaction); Kairouz, Oh and Viswanath, arXiv:1311.0776.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from tacit.theory.statement import ConvexSetting, Risk, TheoryError

Claim = Literal["(epsilon, delta)-DP", "Gaussian DP"]
"""What the protocol promises each record: the budget itself, or the separation mu that the budget allows."""


class Floor(NamedTuple):
    """An excess risk that no protocol beats for every problem, and what limits it: privacy, or records alone."""

    value: float
    limited_by: Literal["privacy", "records"]


class _Reach(NamedTuple):
    """E|s|^2/d at most, for every prior and number of drawn records, and where privacy is what limits it."""

    information: np.ndarray
    by_privacy: np.ndarray


_K = np.geomspace(1e-3, 1e13, 800)[:, None]
_VARIANCE = 1 / (2 * _K + 1)


def floor(
    s: ConvexSetting,
    risk: Risk = "population",
    *,
    sizes: Sequence[int] | None = None,
    claim: Claim = "(epsilon, delta)-DP",
    trusted: bool = False,
) -> Floor:
    """The largest lower bound of the module's docstring for silos of these sizes, by default all of ``s.records``.

    >>> s = ConvexSetting(lipschitz=1, radius=1, records=1000, silos=20, dimension=1000, epsilon=0.5, delta=1e-6)
    >>> found = floor(s)
    >>> round(found.value, 4), found.limited_by
    (0.0041, 'privacy')
    """
    own = (s.records,) * s.silos if sizes is None else tuple(sizes)
    widths = {s.dimension} | {2**i for i in range(int(math.log2(s.dimension)) + 1)}
    return max(_at_dimension(s, risk, own, claim, trusted, d) for d in widths)


def _at_dimension(s: ConvexSetting, risk: Risk, sizes: tuple[int, ...], claim: Claim, trusted: bool, d: int) -> Floor:
    """The best prior, and the best number of drawn records, for problems in this dimension."""
    length, limit = _longest(s)
    if risk == "population":
        reach = _reach((sum(sizes),) if trusted else sizes, np.ones(1), _chi_square(s, claim, d) / d)
        share, spread, left = np.ones(1), min(1.0, limit), 0.0
    else:
        most = math.floor(min(min(sizes), limit * max(sizes)))
        drawn = np.unique(np.geomspace(1, max(1, most), 100).astype(int)).astype(float)
        share, spread = (drawn if most else np.zeros(1)) / max(sizes), 1.0
        groups = (len(sizes),) if trusted else (1,) * len(sizes)
        reach = _reach(groups, drawn, _chi_square(s, claim, d) / d)
        left = np.sqrt(reach.information) / (drawn * len(sizes))
    variance = spread**2 * _VARIANCE
    q = spread**4 * reach.information / (4 * _K**2)
    rho = np.sqrt(variance * q / (variance + q)) + left
    if s.strong_convexity == 0:
        value = length * share * (_norm(d) - rho)
    else:
        value = length**2 / (2 * s.strong_convexity) * share**2 * (variance - rho**2)
    best = np.unravel_index(np.argmax(value), value.shape)
    by_privacy = np.broadcast_to(reach.by_privacy, value.shape)[best]
    return Floor(max(0.0, float(value[best])), "privacy" if by_privacy else "records")


def _longest(s: ConvexSetting) -> tuple[float, float]:
    """L D of the linear loss, or l of the curved one, and the longest mean that keeps the optimum where it must be.

    A bound on the excess risk of the initial point, 0, shortens both.
    """
    gap = math.inf if s.gap is None else s.gap
    if s.strong_convexity == 0:
        return min(s.lipschitz * s.radius, gap), 1.0
    slope = s.lipschitz - s.strong_convexity * s.radius
    if slope <= 0:
        raise TheoryError(
            f"Expected L={s.lipschitz:g} > mu D={s.strong_convexity * s.radius:g} for a lower bound: hardly any loss "
            "is so curved and so flat."
        )
    return slope, s.strong_convexity * min(s.radius, math.sqrt(2 * gap / s.strong_convexity)) / slope


def _reach(groups: Sequence[int], drawn: np.ndarray, close: float) -> _Reach:
    """Steps 1 and 2 for groups of so many times ``drawn`` records, each known as one; ``close`` is c^2/d."""
    sizes, counts = np.unique(np.asarray(groups, float), return_counts=True)
    records = sizes[:, None, None] * drawn * (1 - _VARIANCE)
    private = (sizes[:, None, None] * drawn) ** 2 * close
    least = np.minimum(records, private)
    return _Reach(np.tensordot(counts, least, 1), np.any(private < records, axis=0))


def _chi_square(s: ConvexSetting, claim: Claim, d: int) -> float:
    """c^2 of step 2, delta included; of exponents that no budget needs the largest that a float can hold."""
    if claim == "Gaussian DP":
        return math.expm1(min(s.mu**2, 600.0))
    c = 2 * math.sinh(min(s.epsilon, 600.0) / 2)
    return ((c + math.sqrt(c**2 + 32 * s.delta * d)) / 2) ** 2


def _norm(d: int) -> np.ndarray:
    """Kappa of step 4, from below, for every prior."""
    one = np.exp(-np.log(_K) - special.betaln(0.5, _K))
    tails = 3 * (2 * _K + 1) / (2 * _K + 3)
    return np.maximum(one, np.sqrt(_VARIANCE / (1 + (tails - 1) / d)))
