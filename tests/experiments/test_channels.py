"""The page of channels: choices at an edge are told, and missing answers cost what the server makes of them."""

import numpy as np
import pytest

from experiments.channels import DESIGNS, SPARE_ROUNDS, _price, attempts, beyond, edges
from experiments.deployed_rounds import Absent
from tacit.deploy.wire import AnswerTogether, Hello, frame
from tacit.privacy.anonymity import colluding_silos


def test_a_choice_at_the_edge_is_told():
    """One round is no edge, for nothing lies before it, and one number is no choice."""
    tried = {"rounds": [1, 8], "move": [1.0, 4.0]}
    chosen = {"0.5": (4, 1.0), "1": (1, 2.0), "4": (8, 4.0)}
    cells = {label: {"rounds": r, "move": m, "tried": tried} for label, (r, m) in chosen.items()}
    assert edges(cells) == ["move at epsilon 0.5", "rounds at epsilon 4", "move at epsilon 4"]
    assert edges({"1": {"rounds": 35, "move": 2.0, "tried": {**tried, "rounds": [35, 35]}}}) == []


def test_what_is_tried_goes_on_beyond_a_choice_at_the_edge():
    assert beyond([1, 2, 4], [1, 4], 1) == [8]
    assert beyond([0.5, 1.0, 2.0], [0.5, 2.0]) == [0.25, 4.0]
    assert beyond([0.5, 1.0, 2.0], [1.0]) == []


def test_attempts_without_anybody_missing_are_the_rounds():
    assert attempts(25, 12, 0.0, np.random.default_rng(0)) == SPARE_ROUNDS


def test_two_silos_of_which_both_are_needed_are_asked_until_both_answer():
    """A geometric number of attempts: the mean is 1 / (1 - p)^2 for each round."""
    rng = np.random.default_rng(0)
    found = np.mean([attempts(2, 2, 0.3, rng) for _ in range(2000)]) / SPARE_ROUNDS
    assert found == pytest.approx(1 / 0.7**2, rel=0.02)


def test_spare_attempts_cost_as_more_rounds_do():
    found = _price(SPARE_ROUNDS)
    assert found["noise"] == pytest.approx(np.sqrt(2), rel=1e-3)
    assert found["epsilon"] > 1.3


class Everybody:
    def present(self):
        return ["a", "b"]

    def ask(self, requests, seconds, enough=None):
        return {at: [] for at in requests}


def test_who_is_missing_is_so_for_the_whole_attempt_and_was_there_before():
    transport = Absent(Everybody(), 0.5, seed=1)
    assert set(transport.ask({"a": [frame(Hello())], "b": [frame(Hello())]}, 1.0)) == {"a", "b"}
    came = []
    for attempt in range(200):
        asked = frame(AnswerTogether.model_construct(study="s", round=0, attempt=attempt, roster=(), arrays=()))
        both = [set(transport.ask({"a": [asked], "b": [asked]}, 1.0)) for _ in range(2)]
        assert both[0] == both[1]
        came.append(len(both[0]))
    assert 0.6 < np.mean(came) < 1.4


@pytest.mark.parametrize(
    ("design", "silos"), [*zip(DESIGNS, (4, 10, 25), strict=True)], ids=lambda own: getattr(own, "study", own)
)
def test_sums_of_both_kinds_count_on_one_colluding_silo(design, silos):
    assert colluding_silos(silos, design.load("shuffled-sum").run.honest) == 1
    assert design.load("pairwise").pairwise.colluding == 1
