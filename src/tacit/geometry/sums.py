"""Sums of regularisers whose proximal operator is closed.

The proximal operator of a sum is in general not the composition of the operators. It is in these cases:

- ``strength / 2 ||w||^2`` plus anything: complete the square;
- l1 plus a box: both act entry by entry, and in one dimension the minimiser over an interval is the
  projection of the unconstrained one;
- l1 plus group lasso (sparse group lasso): soft thresholding first, then the groups;
- l1, group lasso or both, plus an l2 ball around zero: such a penalty satisfies ``h(c w) = c h(w)`` for
  ``c >= 0``, and the projection after its operator only changes the scale.

References:
    Yu, "On decomposing the proximal map", NeurIPS 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.errors import TacitError
from tacit.geometry.proximal import Regulariser, Scalar, with_squared_l2

ORDER = ("l1", "group-lasso", "box", "l2-ball", "frobenius-ball")
"""The operators of a closed sum are applied in this order."""

CLOSED = (
    {"l1", "box"},
    {"l1", "group-lasso"},
    {"l1", "l2-ball"},
    {"l1", "frobenius-ball"},
    {"group-lasso", "l2-ball"},
    {"group-lasso", "frobenius-ball"},
    {"l1", "group-lasso", "l2-ball"},
    {"l1", "group-lasso", "frobenius-ball"},
)
"""The sums that compose, apart from squared l2, which may be added to each of them and to any single term."""


def add(terms: Sequence[tuple[str, Regulariser]], squared_l2: Scalar = 0.0) -> Regulariser:
    """The sum of named terms and ``squared_l2 / 2 * ||w||^2``, if its operator is closed.

    Balls must be around zero, and a Frobenius ball per leaf goes with groups that lie within leaves.

    >>> import jax.numpy as jnp
    >>> from tacit.geometry.proximal import l1
    >>> from tacit.geometry.sets import box
    >>> add([("box", box(0.0, 1.0)), ("l1", l1(0.5))]).prox(jnp.array([-1.0, 1.0, 3.0]), 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    kinds = [kind for kind, _ in terms]
    if len(terms) > 1 and (set(kinds) not in CLOSED or len(set(kinds)) < len(kinds)):
        known = "; ".join(" + ".join(kind for kind in ORDER if kind in closed) for closed in CLOSED)
        raise TacitError(
            f"Expected a sum with a closed proximal operator, not {' + '.join(kinds)}. Closed are: "
            f"{known}; each of them, or any single term, plus squared-l2."
        )
    ordered = sorted(terms, key=lambda term: ORDER.index(term[0])) if len(terms) > 1 else list(terms)
    total = ordered[0][1]
    for _, term in ordered[1:]:
        total = _compose(total, term)
    return total if isinstance(squared_l2, float) and squared_l2 == 0 else with_squared_l2(total, squared_l2)


def _compose(first: Regulariser, then: Regulariser) -> Regulariser:
    return Regulariser(
        value=lambda params: first.value(params) + then.value(params),
        prox=lambda params, step: then.prox(first.prox(params, step), step),
    )
