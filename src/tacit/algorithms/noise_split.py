"""How a budget is shared between kinds of release: the split that makes the noise in the estimates least.

Kind k has noise multiplier z_k. A record pays cost_k / z_k^2 for it, where cost_k counts the releases that the record
is in: Gaussian releases add up so (a subsampled one costs less, by a factor that depends on its noise, and is counted
as if it did not). Noise of size z_k s_k stays in the running estimate of the gradient for some rounds; summed over all
steps that follow an estimate, the variance that this kind puts into it is harm_k z_k^2, with harm_k = s_k^2 x (squared
weights with which its releases enter all estimates). The least total

    minimise    sum_k harm_k z_k^2    where    sum_k cost_k / z_k^2    is given

has harm_k z_k = lambda cost_k / z_k^3 for all k (the derivatives, with one multiplier lambda), hence z_k^4 is in
proportion to cost_k / harm_k. The ratio of two kinds does not depend on the budget nor on other kinds:

    z_k / z_base = [(cost_k / harm_k) / (cost_base / harm_base)]^(1/4)

A gradient has s = 2 C/K and a difference 2 D/K with D = min(2 C, slope x distance). The distance is not known in
advance: with a slope D is taken to be `TYPICAL` clips, a quarter of what gradients of length C move at the theorem's
step 1/(2 slope). This is a choice for accuracy alone; what is released is priced as it is.

Second moments (`tacit.algorithms.preconditioned_sgd`) are no estimates, but rescale the d coordinates of all of them. A
moment has s = sqrt(2) C^2/K. Gradients of length C have moments of C^2/d on average, of which s is the share
sqrt(2) d/K, and every coordinate of a step is off by that share of itself. With a mean gradient of `TYPICAL` clips the
step is off by TYPICAL C sqrt(2) d/K in norm, and by 2 C sqrt(d)/K for the noise of the gradient itself. The square of
the ratio is TYPICAL^2 d/2: the harm of a moment, beside that of a gradient.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.algorithm import Terms
from tacit.errors import TacitError

TYPICAL = 1 / 8
"""The bound of a difference in clips of a gradient, where it follows the distance."""
REPORT = 2.5
"""Deviation of a coordinate of a local report of a unit vector at a small local epsilon, times that epsilon."""
MOST = 64.0
"""No kind has more than so many times the noise of another: one that enters no estimate would have any."""
UNKNOWN = 100
"""Records of a local batch whose size is not known: a full one."""


class Kind(NamedTuple):
    """A kind of release at noise multiplier one: what it costs a record, and the variance it adds to all estimates."""

    cost: float
    harm: float


def ratio_of(kind: Kind, base: Kind) -> float:
    """How many times the noise multiplier of ``base`` this kind has in the least noisy split, `MOST` at most.

    >>> ratio_of(Kind(cost=16, harm=1), Kind(cost=1, harm=1))
    2.0
    """
    if kind.harm == 0 or base.harm == 0:
        return MOST if kind.harm == 0 else 1 / MOST
    return float(min(MOST, max(1 / MOST, ((kind.cost * base.harm) / (base.cost * kind.harm)) ** 0.25)))


def recursive(num_rounds: int, phase_length: int | None, momentum: float = 0.0) -> tuple[Kind, Kind]:
    """Gradients and differences of a running estimate, v <- (1 - momentum)(v + difference) + momentum gradient.

    A phase begins with a gradient alone; ``momentum=0`` has no others (SPIDER, DIFF2). Sizes are one.

    >>> recursive(4, 2)
    (Kind(cost=2, harm=4.0), Kind(cost=2, harm=2.0))
    """
    length = num_rounds if phase_length is None else min(phase_length, num_rounds)
    whole, rest = divmod(num_rounds, length)
    phases, keep = whole + (rest > 0), (1.0 - momentum) ** 2
    fresh, changes = 0.0, 0.0
    for size, times in ((length, whole), (rest, 1)):
        # What enters in a round is in the estimates of the m rounds from there with weights 1, keep, keep^2, ...
        lasting = np.cumsum(keep ** np.arange(size))
        fresh += times * (lasting[-1:].sum() + momentum**2 * lasting[:-1].sum())
        changes += times * keep * lasting[:-1].sum()
    differences = num_rounds - phases
    return Kind(phases + (differences if momentum else 0), float(fresh)), Kind(differences, float(changes))


def anchored(schedule: Sequence[str], anchor: str) -> tuple[Kind, Kind]:
    """Anchors and differences of SVRG: every estimate has the noise of its anchor and of at most one difference.

    >>> anchored(("anchor", "difference", "difference"), "anchor")
    (Kind(cost=1, harm=3.0), Kind(cost=2, harm=2.0))
    """
    anchors = sum(kind == anchor for kind in schedule)
    differences = len(schedule) - anchors
    return Kind(anchors, float(len(schedule))), Kind(differences, float(differences))


def difference_ratio(gradient: Kind, difference: Kind, slope: Any, terms: Terms, others: Terms | None = None) -> float:
    """The ratio of noise for differences that are drawn as ``others`` (``None``: as gradients are).

    Where the size of one of the two batches is not known, as that of a full one, they count as equal.
    """
    if difference.cost == 0:
        return 1.0
    bound, sized = 2.0 if slope is None else TYPICAL, [terms.batch_size, others and others.batch_size]
    if all(size is not None for size in sized):
        bound *= size_of(sized[0]) / size_of(sized[1])
    return ratio_of(Kind(difference.cost, difference.harm * bound**2), gradient)


def local_ratio(estimate: Kind, terms: Terms, own: Terms, *, num_rounds: int, steps: int) -> float:
    """The ratio of noise for local steps, which a silo makes in turn and noises by itself.

    Each of the ``steps`` of a round goes along the server's estimate, and along each difference that came before it. A
    full batch counts as that of the theorem, ``steps`` local batches; local batches of unknown size as `UNKNOWN`.
    """
    silos = terms.silos or 1
    turns = -(-num_rounds // silos)
    both_full = terms.batch_size is None and own.batch_size is None
    local = UNKNOWN if own.batch_size is None else size_of(own.batch_size)
    size = (local if both_full else steps * local) if terms.batch_size is None else size_of(terms.batch_size)
    # Noise of the mean over silos, and what it costs, at multiplier one.
    spread = {"direct": 4 / (silos * size**2), "shuffled-reports": REPORT**2 / (silos * size)}
    paid = {"shuffled-reports": 1 / (silos * size)}
    base = Kind(
        estimate.cost * paid.get(terms.channel, 1.0),
        steps * estimate.harm * spread.get(terms.channel, 4 / (silos * size) ** 2),
    )
    once = 4 * (TYPICAL / local) ** 2
    return ratio_of(Kind((steps - 1) * turns, num_rounds * steps * (steps - 1) / 2 * once), base)


def moment_ratio(moment_rounds: int, gradient_rounds: int, dimension: int) -> float:
    """The ratio of noise for second moments of which the last scale the coordinates of all gradients.

    >>> moment_ratio(1, 8, 256), moment_ratio(2, 1, 1)
    (0.5, 4.0)
    """
    moments = Kind(moment_rounds, gradient_rounds * TYPICAL**2 * dimension / 2)
    return ratio_of(moments, Kind(gradient_rounds, gradient_rounds))


def size_of(batch_size: Any) -> float:
    """The records of a batch; of silos that draw differently, the mean."""
    if isinstance(batch_size, jax.core.Tracer):
        raise TacitError(
            "Expected batch sizes that are known in advance where the split of noise follows them; give "
            "difference_noise and local_noise to try several sizes in one program."
        )
    return float(np.mean(batch_size))


def psgm_ratios(terms: Terms, own: Terms, shape: Any, slope: Any, difference: Any, local: Any) -> tuple[Any, Any]:
    """The ratios of noise for the differences and the local steps of CE-PSGM; what is given stays as it is.

    ``shape`` is rounds, phase length (or none), local steps and momentum.
    """
    num_rounds, phase_length, local_steps, momentum = shape
    asked = difference is None or (local is None and local_steps > 1)
    if not asked:
        return difference, local
    if isinstance(momentum, jax.core.Tracer):
        raise TacitError(
            "Expected a momentum that is known in advance where the split of noise follows it; give difference_noise "
            "and local_noise to try several in one program."
        )
    fresh, changes = recursive(num_rounds, phase_length, float(momentum))
    if difference is None:
        difference = difference_ratio(fresh, changes, slope, terms)
    if local is None and local_steps > 1:
        local = local_ratio(fresh, terms, own, num_rounds=num_rounds, steps=local_steps)
    return difference, local
