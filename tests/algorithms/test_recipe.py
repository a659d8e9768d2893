"""Algorithms as objects: recipes, presets, the terms of release, and the row that holds everything about one."""

import inspect
import re
from dataclasses import fields
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.algorithm import Fixed, Terms, preset, recipe
from tacit.objectives import Problem
from tacit.plans import catalogue
from tacit.plans.catalogue import ALGORITHMS, find, paper_noise
from tacit.privacy import PricingError, Setting
from tests.algorithms.table import CASES, LOGISTIC

TERMS = Terms(clip_norm=0.5, noise_multiplier=2.0, batch_size=None, sampling="full")


def test_a_recipe_holds_a_name_and_parameters_and_makes_an_algorithm():
    made = tacit.mb_sgd(step_size=8.0, num_rounds=3)
    assert (made.name, dict(made.parameters)) == ("mb-sgd", {"step_size": 8.0, "num_rounds": 3})
    assert made == tacit.mb_sgd(num_rounds=3, step_size=8.0) != tacit.prox_sgd(step_size=8.0, num_rounds=3)
    algorithm = made(LOGISTIC, TERMS)
    release = algorithm.rounds["gradient"].silo.release
    assert (release.clip(None), release.noise_multiplier, release.channel) == (0.5, 2.0, "direct")
    assert len(algorithm.schedule) == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_a_function_of_tacit(name):
    function = getattr(tacit, name.replace("-", "_"))
    assert function is find(name).recipe
    completes = f"from tacit.algorithms.{find(name).file} import {function.__name__} as {function.__name__}"
    assert completes in inspect.getsource(catalogue), "editors and type checkers need this import in the catalogue"
    assert function.__name__ in dir(tacit)
    assert inspect.getdoc(function)
    own = inspect.signature(function).parameters
    assert {"step_size", "num_rounds"} <= set(own)
    assert not set(own) & {field.name for field in fields(Terms)}
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in own.values())


def test_what_tacit_does_not_have_is_no_attribute():
    for name in ("mb_sdg", "mb-sgd", "find", "_nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(tacit, name)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (tacit.mb_sgd, {"stepsize": 1.0}, "did you mean 'step_size'"),
        (tacit.mb_sgd, {"step_size": 1.0}, "mb-sgd: missing a required argument: 'num_rounds'"),
        (tacit.mb_psgm, {"local_steps": 3}, "mb-psgm settles it; use ce-psgm"),
        (tacit.prox_sgd, {"num_rounds": 3, "output": "average"}, "prox-sgd settles it; use mb-sgd"),
    ],
)
def test_a_wrong_parameter_is_named_at_once(function, given, message):
    with pytest.raises(TypeError, match=message):
        function(**given)


def test_a_preset_fixes_parameters_and_keeps_its_own_defaults():
    seen = {}

    @recipe
    def base(problem: Problem, terms: Terms, *, step_size: Any, num_rounds: int, output: str = "average") -> Any:
        seen.update(step_size=step_size, num_rounds=num_rounds, output=output)

    @preset(base, sampling="one-pass")
    def special(problem: Problem, terms: Terms, *, step_size: Any = 0.25, num_rounds: int) -> Fixed:
        """One pass."""
        return {"output": "last", "num_rounds": 2 * num_rounds}

    assert list(inspect.signature(special).parameters) == ["step_size", "num_rounds"]
    assert (special.__name__, special.__doc__, special(num_rounds=3).name) == ("special", "One pass.", "special")
    special(num_rounds=3)(LOGISTIC, TERMS.drawn(2, "one-pass"))
    assert seen == {"step_size": 0.25, "num_rounds": 6, "output": "last"}
    with pytest.raises(ValueError, match="Expected sampling=\"one-pass\" for special, got 'full'; base takes any"):
        special(num_rounds=3)(LOGISTIC, TERMS)


def test_options_of_a_preset_have_the_defaults_of_its_base():
    shown, base = (inspect.signature(f).parameters for f in (tacit.diff2_gd, tacit.ce_psgm))
    assert set(base) - set(shown) == {"local_steps", "momentum", "local_batch_size", "local_noise", "local_slope"}
    assert all(shown[name] == base[name] for name in shown)


def test_noise_is_in_units_of_the_terms():
    by_silo = Terms(1.0, (1.0, 3.0), None, "full")
    assert TERMS.release(noise=1.5).noise_multiplier == 3.0
    assert TERMS.release(noise={"a": 0.5, "b": 1.0}).noise_multiplier == {"a": 1.0, "b": 2.0}
    np.testing.assert_array_equal(by_silo.release(noise=2.0).noise_multiplier, [2.0, 6.0])
    assert by_silo.release().noise_multiplier == (1.0, 3.0)
    assert Terms(None, None, None, "full", channel="open").release(noise={"a": 2.0}).noise_multiplier is None
    traced = Terms(1.0, jnp.asarray(2.0), None, "full").release(noise=jnp.asarray(1.0))
    assert float(traced.noise_multiplier) == 2.0


def test_a_clip_of_its_own_takes_the_place_of_the_terms():
    assert TERMS.release(clip=lambda work: work + 1).clip(2) == 3
    assert TERMS.drawn(4, "poisson", 6).release().capacity == 6


def test_only_algorithms_that_know_the_groups_protect_the_attribute_alone():
    alone = Terms(1.0, 1.0, None, "full", protects="sensitive-attribute")
    assert alone.release(groups=3).groups == 3
    assert TERMS.release(groups=3).groups is None
    with pytest.raises(ValueError, match="protects whole records"):
        alone.release()
    for name, case in CASES.items():
        if not find(name).reads_attribute:
            with pytest.raises(ValueError, match="protects whole records"):
                case.build(LOGISTIC, protects="sensitive-attribute")


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.letters])
def test_letters_of_the_paper_stand_for_names_that_exist(name):
    """In the file of an algorithm, whose presets may have fixed some."""
    module = find(name).recipe.__module__
    known = {field.name for field in fields(Terms)}
    known |= {p for e in ALGORITHMS.values() if e.recipe.__module__ == module for p in e.parameters}
    for letter, here in find(name).letters.items():
        assert known & set(re.findall(r"\w+", here)), f"{letter}: {here}"


def test_theorems_read_parameters_by_their_own_names():
    """A name that no algorithm has would silently keep its default, and print a wrong number."""
    known = {field.name for field in fields(Terms)} | {p for e in ALGORITHMS.values() for p in e.parameters}
    assert {field.name for field in fields(Setting)} - {"records", "epsilon", "delta", "silos"} <= known


def test_what_a_theorem_prints_follows_the_parameters():
    told = {"records": 285, "num_rounds": 25, "epsilon": 3.0, "delta": 1e-5, "sampling": "full"}
    noise = paper_noise("prox-spider", phase_length=2, **told)
    assert [(r.kind, r.count) for r in noise.releases] == [("gradient", 13), ("difference", 13)]
    assert noise.epsilon_certified == pytest.approx(2.227, abs=5e-4)
    stages = paper_noise("pl-svrg", **{**told, "num_rounds": 24}, phase_length=4, restarts=2)
    assert [(r.kind, r.count) for r in stages.releases] == [("anchor", 6), ("difference", 24)]
    assert paper_noise("ce-psgm-fg", channel="trusted", **told) is None
    with pytest.raises(PricingError, match="epsilon"):
        paper_noise("mb-sgd", **{**told, "epsilon": -1.0})
