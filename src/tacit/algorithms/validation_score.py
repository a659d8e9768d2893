"""A model's error on validation records, said once by every silo with noise.

    message of silo i     mean over its n records of (error - 1/2) + N(0, sigma^2)
    output                the mean of all silos' messages + 1/2

A record's error is 0 or 1 for classes, and the absolute residual up to 1 for numbers (targets lie in [0, 1]). It lies
in [0, 1], so that one record moves a silo's mean by 1/n at most: twice the clip 1/2, over n.
"""

import jax.numpy as jnp

from tacit.algorithm import Algorithm, Params, Record, Round, Server, Silo, Terms
from tacit.objectives import Objective, untapped


def record_error(objective: Objective, params: Params, record: Record) -> jnp.ndarray:
    """The error of one record, between 0 and 1."""
    outputs = objective.model.apply(params, record["x"][None], untapped)
    metric = objective.cost.metrics.get("error")
    if metric is not None:
        return metric(outputs, record["y"][None])[0]
    return jnp.clip(jnp.abs(outputs[0, 0] - record["y"]), 0.0, 1.0)


def validation_score(objective: Objective, terms: Terms) -> Algorithm:
    """One round that releases the error of the model it starts from; the output is that error."""

    def query(work: Params, record: Record) -> jnp.ndarray:
        return record_error(objective, work, record) - 0.5

    def init(params: Params) -> tuple[Params, jnp.ndarray]:
        return params, jnp.zeros(())

    release = terms.drawn(None, "full").release(clip=lambda work: 0.5)
    server = Server(lambda state: state[0], lambda state, message: (state[0], message + 0.5))
    once = Round(Silo(query, release), server, "all")
    return Algorithm(init, {"score": once}, ("score",), lambda state: state[1])
