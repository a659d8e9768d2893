"""A hostile server against real daemons: no answer goes beyond its clip and noise, whatever is broadcast."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from soak.attack import Attack, Outcome, attack
from soak.releases import Block, Facts, blocks_of
from soak.studies import Study, silos
from tacit.plans.catalogue import ALGORITHMS


@pytest.fixture(scope="module")
def outcome():
    return attack(500, 0, quiet=True)


def test_no_answer_is_beyond_its_clip_and_noise(outcome):
    assert not outcome.violations, "\n".join([outcome.table(), *map(str, outcome.violations[:10])])
    assert all(row.worst <= 1.0 for row in outcome.rows.values())


def test_every_algorithm_was_attacked_and_answered(outcome):
    answered = {algorithm for (algorithm, _, _), row in outcome.rows.items() if row.answers}
    expected = {name for name, entry in ALGORITHMS.items() if not entry.reads_attribute}
    assert answered == expected, dict(outcome.refusals)
    assert outcome.answers >= 500
    assert {model for _, model, _ in outcome.rows} == {"linear", "mlp", "cnn"}


def test_rounds_that_are_not_described_are_told():
    """A silo that consents to other rounds than those that the attacker knows is a finding, not a broken attacker."""
    own = {"name": "sgda", "num_rounds": 2, "clip_norm": 1.0}
    study = Study(0, "zeros", own, {"model": "linear", "loss": "squared"}, 2.0)
    consent = SimpleNamespace(header={"type": "consent", "study": "0", "noise_multipliers": {"gradient": 1.0}})
    line, found = SimpleNamespace(ask=lambda header: consent), Outcome()
    assert Attack(study, silos()["zeros"], line, found, 0).run("0") == 0
    assert [one["what"] for one in found.violations] == ["kinds"]


def test_noise_was_heard_where_nothing_else_is_said(outcome):
    [total, size] = outcome.noise["alternate-spider"]
    assert size >= 20
    assert total / size == pytest.approx(1.0, abs=6.0 * math.sqrt(2.0 / size) + 0.01)


def test_the_judge_knows_a_clip_that_was_passed():
    facts = Facts(8, [np.ones(4), np.zeros(4)], [], shrinks=False)
    spider = {"name": "prox-spider", "clip_norm": 3.0, "difference_slope": 0.5, "phase_length": 2}
    [block] = blocks_of(spider, "difference", {"difference": 0.1}, facts)
    assert block.clip == pytest.approx(1.0)  # half the distance, which is 2
    assert block.deviations == pytest.approx(9 * 0.1 * 2 * 1.0 / 8)
    assert block.ratio(np.array([1.2, 0, 0, 0], np.float32)) < 1.0
    assert block.ratio(np.array([1.3, 0, 0, 0], np.float32)) > 1.0
    assert block.ratio(np.array([1.0, 1.0, 1.0, 0], np.float32)) > 1.0  # in norm
    assert block.ratio(np.array([math.nan, 0, 0, 0], np.float32)) == math.inf


def test_where_the_clip_is_zero_nothing_may_be_said():
    facts = Facts(8, [np.ones(4), np.ones(4)], [], shrinks=False)
    spider = {"name": "prox-spider", "clip_norm": 3.0, "difference_slope": 0.5, "phase_length": 2}
    [block] = blocks_of(spider, "difference", {"difference": 0.1}, facts)
    assert block.ratio(np.zeros(4, np.float32)) == 0.0
    assert block.ratio(np.array([1e-30, 0, 0, 0], np.float32)) == math.inf


def test_local_steps_are_judged_from_where_the_broadcast_leads():
    start = np.array([1e8, 0.0, math.nan])
    local = {"name": "local-sgd", "clip_norm": 1.0, "step_size": 0.1, "local_steps": 2}
    [block] = blocks_of(local, "local", {"local": 0.01}, Facts(8, [start], [], shrinks=False))
    assert isinstance(block, Block)
    assert block.ratio(np.array([1e8, 0.2, math.nan], np.float32)) < 1.0
    assert block.ratio(np.array([1e8, 0.3, math.nan], np.float32)) > 1.0
    assert block.ratio(np.array([1e8 + 1e4, 0.0, math.nan], np.float32)) > 1.0
    assert block.ratio(np.array([1e8, math.inf, math.nan], np.float32)) == math.inf
