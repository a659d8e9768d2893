"""Proximal operators and projections: what the server does to the mean message before the next broadcast.

A :class:`Regulariser` is a closed convex function with its value and its proximal operator, pure functions on
pytrees that can be jitted and vmapped. Strengths and radii may be traced, so a grid of them is one program.

>>> import jax.numpy as jnp
>>> from tacit import geometry
>>> geometry.regulariser("l1:0.5").prox({"w": jnp.array([2.0, 0.1])}, 1.0)["w"].tolist()
[1.5, 0.0]
"""

from tacit.geometry.penalties import elastic_net, group_lasso, l1, squared_l2, with_squared_l2, zero
from tacit.geometry.proximal import Params, Regulariser, tree_norm
from tacit.geometry.sets import box, frobenius_ball, l1_ball, l2_ball, simplex
from tacit.geometry.sums import add
from tacit.geometry.table import regulariser, terms

__all__ = [
    "Params",
    "Regulariser",
    "add",
    "box",
    "elastic_net",
    "frobenius_ball",
    "group_lasso",
    "l1",
    "l1_ball",
    "l2_ball",
    "regulariser",
    "simplex",
    "squared_l2",
    "terms",
    "tree_norm",
    "with_squared_l2",
    "zero",
]
