"""What a type checker must say of algorithms as objects. Read by mypy, never run.

Each ignored line is one that must be an error: mypy reports an ignore that is not needed.
"""

from typing import assert_type

import tacit
from tacit.algorithm import Algorithm
from tacit.data import Federation


def an_algorithm_is_an_object(problem: tacit.Problem, terms: tacit.Terms) -> None:
    sgd = tacit.mb_sgd(step_size=8.0, num_rounds=30)
    assert_type(sgd, tacit.Recipe)
    assert_type(sgd(problem, terms), Algorithm)
    assert_type(sgd.with_server("adam"), tacit.Recipe)
    assert_type(tacit.steffle(step_size=1.0, num_rounds=3, strength=0.5, groups=2), tacit.Recipe)


def its_parameters_are_checked() -> None:
    tacit.mb_sgd(step_size=8.0)  # type: ignore[call-arg]
    tacit.mb_sgd(step_size=8.0, num_rounds="30")  # type: ignore[arg-type]
    tacit.mb_sgd(step_size=8.0, num_rounds=30, momentum=0.9)  # type: ignore[call-arg]
    tacit.mb_sgd(step_size=8.0, num_rounds=30, clip_norm=1.0)  # type: ignore[call-arg]
    tacit.mb_sgd(8.0, 30)  # type: ignore[call-arg]


def a_preset_has_parameters_of_its_own() -> None:
    assert_type(tacit.prox_sgd(num_rounds=3), tacit.Recipe)
    assert_type(tacit.mb_psgm(step_size=0.1, num_rounds=3, difference_slope=1.0, randomiser="duchi"), tacit.Recipe)
    tacit.mb_psgm(step_size=0.1, num_rounds=3, difference_slope=1.0, local_steps=2)  # type: ignore[call-arg]
    tacit.mb_psgm(step_size=0.1, num_rounds=3, difference_slope=1.0, randomiser="best")  # type: ignore[arg-type]
    tacit.pl_svrg(step_size=0.1, num_rounds=3, restarts=2)  # type: ignore[call-arg]


def fit_takes_recipes_and_functions(problem: tacit.Problem, silos: Federation, budget: tacit.Budget) -> None:
    def own(problem: tacit.Problem, terms: tacit.Terms) -> Algorithm:
        return tacit.mb_sgd(step_size=1.0, num_rounds=2)(problem, terms)

    assert_type(tacit.fit(problem, silos, own, budget=budget, clip_norm=1.0), tacit.Fit)
    assert_type(tacit.fit(problem, silos, tacit.mb_sgd(step_size=1.0, num_rounds=2), budget=None), tacit.Fit)
    tacit.fit(problem, silos, "mb-sgd", budget=budget, clip_norm=1.0)  # type: ignore[arg-type]
    tacit.fit(problem, silos, tacit.mb_sgd, budget=budget, clip_norm=1.0)  # type: ignore[arg-type]
    tacit.fit(problem, silos, own, budget=budget, clip_norm=1.0, step_size=1.0)  # type: ignore[call-arg]
    tacit.fit(problem, silos, own, budget=budget, clip_norm=1.0, sampling="some")  # type: ignore[arg-type]
