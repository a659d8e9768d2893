"""Proximal operators and projections: what the server does to the mean message before the next broadcast.

A :class:`Regulariser` is a closed convex function with its value and its proximal operator, pure functions on
pytrees that can be jitted and vmapped. Strengths and radii may be traced, so a grid of them is one program.

>>> import jax.numpy as jnp
>>> from tacit import geometry
>>> geometry.regulariser("l1:0.5").prox({"w": jnp.array([2.0, 0.1])}, 1.0)["w"].tolist()
[1.5, 0.0]
"""

import lazy_loader

# Names load when they are used, so that a daemon or a shuffler loads what it needs and no more.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
