"""Ridge regression in one round, from private second moments.

Sheffet, "Old techniques in differentially private linear regression" (arXiv:1507.02482), with Gaussian noise, as
sufficient statistics (Vu and Slavkovic 2009).

    message of silo i     means over its n records of  x x^T,  x,  (x, 1)(y - 1/2),  each with N(0, sigma_b^2)
    server                A = mean of x x^T - m m^T, m = mean of x, made positive;  c = mean of (x - m)(y - 1/2)
                          w = (A + lambda I)^-1 c,      intercept = mean of y - m . w

    paper     here
    -----     ----
    lambda    strength
    B         clip_norm

Features are shrunk to norm at most ``clip_norm`` and targets to [0, 1], record by record, so that the three blocks of a
record have norms of at most clip_norm^2, clip_norm and half of sqrt(clip_norm^2 + 1). They are one release, priced
together. Eigenvalues of A that noise makes negative count as zero: all of A + lambda I are at least the public lambda.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Record, Round, Server, Silo, Terms, Work, recipe
from tacit.objectives import Problem


@recipe
def ridge(problem: Problem, terms: Terms, *, strength: Number) -> Algorithm:
    """Least squares of a linear model in one round; ``strength`` is the public ridge, in units of mean x x^T."""
    shape, loss = problem.objective.model.linear, problem.objective.cost.name
    if shape is None or shape.outputs != 1 or not shape.bias or loss != "squared":
        raise ValueError(
            f'Expected a linear model of one output and the loss "squared" for ridge, got {loss!r}; use mb-sgd.'
        )
    if terms.channel == "shuffled-reports":
        raise ValueError('Expected channel="direct", "trusted" or "shuffled-sum" for ridge; reports are too noisy.')
    if isinstance(strength, float | int) and not strength > 0:
        raise ValueError(f"Expected strength={strength} > 0: noise can make what it is added to zero.")
    rows, columns = jnp.triu_indices(shape.features)

    def query(work: Work, record: Record) -> dict[str, Any]:
        x, target = _shrunk(record["x"], terms.clip_norm), jnp.clip(record["y"], 0.0, 1.0) - 0.5
        # Entries off the diagonal stand for two: the norm is that of the whole matrix.
        twice = jnp.where(rows == columns, 1.0, math.sqrt(2.0))
        return {"gram": (twice * x[rows] * x[columns]), "mean": x, "cross": jnp.append(x, 1.0) * target}

    def clip(work: Work) -> dict[str, Any]:
        bound: Any = terms.clip_norm
        return {"gram": bound**2, "mean": bound, "cross": 0.5 * jnp.sqrt(bound**2 + 1.0)}

    def tell(state: Params, message: Message) -> Params:
        gram = jnp.zeros((shape.features, shape.features)).at[rows, columns].set(message["gram"])
        gram = jnp.where(rows_are_columns(shape.features), gram, (gram + gram.T) / math.sqrt(2.0))
        mean, (cross, target) = message["mean"], (message["cross"][:-1], message["cross"][-1])
        values, vectors = jnp.linalg.eigh(gram - jnp.outer(mean, mean))
        solved = vectors @ ((vectors.T @ (cross - target * mean)) / (jnp.maximum(values, 0.0) + strength))
        return {"linear": {"w": solved[:, None], "b": (0.5 + target - mean @ solved)[None]}}

    release = terms.drawn(None, "full").release(clip=clip, noise={"gram": 1.5, "mean": 2.0, "cross": 2.0})
    once = Round(Silo(query, release), Server(lambda state: (), tell), "all")
    return Algorithm(lambda params: params, {"moments": once}, ("moments",), lambda state: state)


def rows_are_columns(size: int) -> jax.Array:
    """The diagonal of a square matrix, marked."""
    return jnp.eye(size, dtype=bool)


def _shrunk(x: jax.Array, bound: Any) -> jax.Array:
    """Features of norm at most ``bound``; through the open channel there may be none."""
    if bound is None:
        return x
    return x * jnp.minimum(1.0, bound / jnp.maximum(jnp.linalg.norm(x), 1e-30))
