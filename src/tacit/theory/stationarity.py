"""How far a point is from a solution: the proximal gradient mapping, and the excess over a known optimum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params, Record
from tacit.geometry.proximal import tree_norm
from tacit.objectives import Problem


def risk(problem: Problem, params: Params, records: Record) -> Array:
    """The mean loss of the records plus the regulariser."""
    return problem.objective.losses(params, records).mean() + problem.regulariser.value(params)


def gradient_mapping(problem: Problem, params: Params, records: Record, step: float | Array) -> Array:
    """The norm of (1/step) [w - prox(w - step grad F(w))]; without a regulariser, of the gradient.

    >>> from tacit import geometry
    >>> from tacit.objectives import Objective, linear, squared
    >>> records = {"x": jnp.ones((2, 1)), "y": jnp.array([1.0, 3.0])}
    >>> flat = Problem(Objective(linear(1, 1, bias=False), squared()))
    >>> at = lambda w: {"linear": {"w": jnp.full((1, 1), w)}}
    >>> float(gradient_mapping(flat, at(0.0), records, 0.5)), float(gradient_mapping(flat, at(2.0), records, 0.5))
    (2.0, 0.0)
    >>> lasso = Problem(flat.objective, geometry.l1(0.5))
    >>> float(gradient_mapping(lasso, at(1.5), records, 0.5))
    0.0
    """
    smooth = jax.grad(lambda w: problem.objective.losses(w, records).mean())(params)
    return tree_norm(jax.tree.map(jnp.subtract, params, problem.descend(params, smooth, step))) / step


def proximal_descent(problem: Problem, params: Params, records: Record, step: float | Array, rounds: int) -> Params:
    """The point after so many proximal gradient steps without noise: the optimum, where the loss is proximal-PL."""

    def body(_: int, w: Params) -> Params:
        return problem.descend(w, jax.grad(lambda v: problem.objective.losses(v, records).mean())(w), step)

    return jax.lax.fori_loop(0, rounds, body, params)
