"""Ridge regression in one round, from private second moments.

Sheffet, "Old techniques in differentially private linear regression" (arXiv:1507.02482), with Gaussian noise, as
sufficient statistics (Vu and Slavkovic 2009).

    message of silo i     mean over its n records of u u^T + noise,      u = (x, B / 2, B (y - 1/2))
    server                A = mean of x x^T - m m^T, m = mean of x, made positive;  c = mean of (x - m)(y - 1/2)
                          w = (A + lambda I)^-1 c,      intercept = mean of y - m . w

    paper     here
    -----     ----
    lambda    strength
    B         clip_norm

Features are shrunk to norm at most ``clip_norm`` and targets to [0, 1], record by record, so that |u|^2 <= 3 B^2 / 2.
The product of u u^T and v v^T is (u . v)^2, which is not negative: replacing a record moves the sum by at most
sqrt(2) 3 B^2 / 2. All moments are entries of one matrix, and one release. It has noise in every entry, and the server
takes the mean of two that should be equal. Eigenvalues of A that noise makes negative count as zero: all of
A + lambda I are at least the public lambda.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Record, Round, Server, Silo, Terms, Work, recipe
from tacit.objectives import Problem
from tacit.objectives.query import SQUARE, SquareQuery


@recipe
def ridge(problem: Problem, terms: Terms, *, strength: Number) -> Algorithm:
    """Least squares of a linear model in one round; ``strength`` is the public ridge, in units of mean x x^T."""
    shape, loss = problem.objective.model.linear, problem.objective.cost.name
    if shape is None or shape.outputs != 1 or not shape.bias or loss != "squared":
        raise ValueError(
            f'Expected a linear model of one output and the loss "squared" for ridge, got {loss!r}; use mb-sgd.'
        )
    if terms.channel == "shuffled-reports":
        raise ValueError('Expected another channel than "shuffled-reports" for ridge; reports are too noisy.')
    if isinstance(strength, float | int) and not strength > 0:
        raise ValueError(f"Expected strength={strength} > 0: noise can make what it is added to zero.")
    d, scale = shape.features, 1.0 if terms.clip_norm is None else terms.clip_norm

    def vector(work: Work, record: Record) -> jax.Array:
        target = scale * (jnp.clip(record["y"], 0.0, 1.0) - 0.5)
        return jnp.concatenate([_shrunk(record["x"], terms.clip_norm), jnp.stack([scale / 2, target])])

    def tell(state: Params, message: Message) -> Params:
        moments = message[SQUARE]["w"]
        moments = (moments + moments.T) / 2.0
        mean, cross = moments[:d, d] / (scale / 2), moments[:d, d + 1] / scale
        target = moments[d, d + 1] / (scale**2 / 2)
        values, vectors = jnp.linalg.eigh(moments[:d, :d] - jnp.outer(mean, mean))
        solved = vectors @ ((vectors.T @ (cross - target * mean)) / (jnp.maximum(values, 0.0) + strength))
        return {"linear": {"w": solved[:, None], "b": (0.5 + target - mean @ solved)[None]}}

    release = terms.drawn(None, "full").release(clip=lambda work: 1.5 * scale**2, nonnegative=True)
    once = Round(Silo(SquareQuery(vector), release), Server(lambda state: (), tell), "all")
    return Algorithm(lambda params: params, {"moments": once}, ("moments",), lambda state: state)


def _shrunk(x: jax.Array, bound: Any) -> jax.Array:
    """Features of norm at most ``bound``; through the open channel there may be none."""
    if bound is None:
        return x
    return x * jnp.minimum(1.0, bound / jnp.maximum(jnp.linalg.norm(x), 1e-30))
