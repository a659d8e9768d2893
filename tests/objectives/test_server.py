"""Server optimisers: optax's own steps, for every algorithm whose server takes a step; the price stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tacit
from tacit.algorithm import Terms
from tacit.errors import TacitError
from tacit.objectives.server import RULES
from tacit.plans.assemble import shapes_of
from tacit.plans.catalogue import SOLVERS, find
from tacit.silo import enrol, rows_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, least_squares, start, tables

NO_STEP = {
    "local-sgd": "silos step",
    "ce-psgm": "the silo in turn steps",
    "ce-psgm-fg": "the silo in turn steps",
    "diff2-bvr-lsgd": "the silo in turn steps",
    "accelerated-mb-sgd": "a step of its own",
    "one-pass-accelerated": "a step of its own",
    "localised-mb-sgd": "a step of its own",
    "mu2-sgd": "a step of its own",
}
"""Algorithms whose servers take no plain step."""
RECORD = {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in tables()[0].items()}
OPEN = Terms(None, None, None, "full", channel="open")


def releases(algorithm):
    """All that is priced."""
    fields = ("noise_multiplier", "batch_size", "sampling", "capacity", "mechanism", "channel", "protects", "passes")
    rounds = algorithm.rounds.items()
    static = {kind: [repr(getattr(part.silo.release, name)) for name in fields] for kind, part in rounds}
    return algorithm.schedule, static, {kind: part.silo.local_steps for kind, part in rounds}


@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_STEP])
def test_every_algorithm_whose_server_steps_takes_a_rule_at_the_same_price(name):
    """Any of the rules: the place of one among all has the state of all."""
    plain, algorithm = CASES[name].build(LOGISTIC), CASES[name].build(LOGISTIC, server=RULES.index("momentum"))
    assert releases(algorithm) == releases(plain)
    with_rule, without = (shapes_of(one, LOGISTIC, RECORD) for one in (algorithm, plain))
    assert with_rule == without, "silos are told, and say, the same"


@pytest.mark.parametrize("name", NO_STEP)
def test_a_server_that_takes_no_step_is_refused(name):
    algorithm = CASES[name].build(LOGISTIC, server="adam")
    with pytest.raises(TacitError, match="Expected a server that takes a plain step for server='adam'"):
        shapes_of(algorithm, LOGISTIC, RECORD)
    with pytest.raises(TacitError, match="Expected a server that takes a plain step"):
        simulate(algorithm, start(LOGISTIC), enrol(tables()), key=jax.random.key(0))


def test_what_is_solved_in_one_round_takes_no_step():
    made, problem, _ = least_squares()
    problem = tacit.Problem(tacit.objectives.Objective(tacit.objectives.linear(4, 1), tacit.objectives.squared()))
    algorithm = find("ridge").build(problem, strength=0.1, clip_norm=1.0, noise_multiplier=1.0, batch_size=None,
                                    sampling="full", server="momentum")  # fmt: skip
    record = {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in made[0].items()}
    assert set(SOLVERS) == {"ridge"}
    with pytest.raises(TacitError, match="takes a plain step"):
        shapes_of(algorithm, problem, record)


@pytest.mark.parametrize("server", RULES)
def test_steps_are_those_of_optax(server):
    """Five rounds without noise beside a loop over the mean gradient with optax's own update."""
    made, problem, _ = least_squares()
    recipe = tacit.mb_sgd(step_size=0.1, num_rounds=5, output="last").with_server(server)
    found = simulate(recipe(problem, OPEN), start(problem), enrol(made), key=jax.random.key(0)).params
    rules = {
        "sgd": optax.sgd(0.1),
        "momentum": optax.chain(optax.ema(0.9, debias=True), optax.scale(-0.1)),
        "adam": optax.adam(0.1, b1=0.9, b2=0.99, eps=1e-3),
        "yogi": optax.yogi(0.1, b1=0.9, b2=0.99, eps=1e-3),
        "adagrad": optax.adagrad(0.1, initial_accumulator_value=0.0),
    }
    params, rule = start(problem), rules[server]
    moments = rule.init(params)
    for _ in range(5):
        losses = lambda p: jnp.mean(jnp.stack([problem.objective.losses(p, t).mean() for t in made]))  # noqa: E731
        update, moments = rule.update(jax.grad(losses)(params), moments, params)
        params = optax.apply_updates(params, update)
    assert largest_difference(found, params) < 1e-5


@pytest.mark.parametrize("name", ["mb-sgd", "prox-svrg", "mb-psgm", "steffle"])
def test_simulation_equals_the_plain_loop(name):
    silos, key = enrol(tables(sizes=(24, 24, 24))), jax.random.key(1)
    algorithm = CASES[name].build(LOGISTIC, server="adam")
    fast = simulate(algorithm, start(LOGISTIC), silos, key=key, noise="each")
    slow = debug(algorithm, start(LOGISTIC), [rows_of(silos, i) for i in range(3)], key=key)
    plain = simulate(CASES[name].build(LOGISTIC), start(LOGISTIC), silos, key=key, noise="each")
    assert largest_difference(fast.params, slow.params) < 1e-5 < largest_difference(fast.params, plain.params)


def test_a_grid_over_servers_is_one_program():
    silos, key = enrol(tables()), jax.random.key(1)
    grid = {"server": np.arange(len(RULES)), "step_size": np.full(len(RULES), 0.1)}
    found = simulate_grid(lambda **point: CASES["mb-sgd"].build(LOGISTIC, output="last", **point), grid,
                          [Seed(key, start(LOGISTIC), silos)]).params  # fmt: skip
    for place, server in enumerate(RULES):
        alone = simulate(CASES["mb-sgd"].build(LOGISTIC, output="last", server=server, step_size=0.1),
                         start(LOGISTIC), silos, key=key).params  # fmt: skip
        assert largest_difference(jax.tree.map(lambda leaf, place=place: leaf[0, place], found), alone) < 1e-5


def test_an_unknown_server_is_named():
    with pytest.raises(TacitError, match="Unknown server 'adm'; did you mean 'adam'"):
        tacit.mb_sgd(step_size=1.0, num_rounds=2).with_server("adm")(LOGISTIC, OPEN)
