"""A hostile server against real daemons: no answer goes beyond its clip and noise, whatever is broadcast."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import soak
from soak.attack import Attack, Outcome, attack, proposals
from soak.questions import Table, asked_statistics, ratios, tables_of
from soak.releases import REFUSED, Block, Facts, blocks_of
from soak.silos import silos
from soak.studies import MODELS, NO_MODEL, Study
from tacit.counting.request import noise_ratios, parsed
from tacit.plans.catalogue import shipped


@pytest.fixture(scope="module")
def outcome():
    return attack(500, 0, quiet=True)


def test_no_answer_is_beyond_its_clip_and_noise(outcome):
    assert not outcome.violations, "\n".join([outcome.table(), *map(str, outcome.violations[:10])])
    assert all(row.worst <= 1.0 for row in outcome.rows.values())


def test_every_algorithm_was_attacked_and_answered(outcome):
    answered = {algorithm for (algorithm, _, _), row in outcome.rows.items() if row.answers}
    assert answered == _taken(), dict(outcome.refusals)
    assert outcome.answers >= 500
    assert {model for _, model, _ in outcome.rows} == {*MODELS, NO_MODEL}


def test_a_long_attack_begins_with_every_algorithm_and_every_model():
    """That a daemon answers all of these, the attack itself says: its table has a row for each."""
    first = next(proposals(2000, 0, sorted(_taken())))
    played = {(study.algorithm["name"], study.model) for study in first}
    once = {("ridge", "linear"), ("statistics", NO_MODEL)}
    assert played == once | {(name, model) for name in _taken() - {"ridge", "statistics"} for model in MODELS}
    assert {study.algorithm["local_steps"] for study in first if study.algorithm["name"] == "local-sgd"} == {1, 3}


def test_the_attacker_imports_nothing_of_tacit():
    for part in ("attack", "broadcasts", "questions", "releases", "silos", "studies", "wire"):
        assert not re.search(r"^\s*(from|import) tacit", (Path(soak.__file__).parent / f"{part}.py").read_text(), re.M)


def _taken():
    """What a daemon answers: all that Tacit lists but what needs a sensitive attribute, which its records lack."""
    reading = {name for name, entry in shipped().items() if entry.reads_attribute}
    assert reading == set(REFUSED)
    return set(shipped()) - reading


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


def test_questions_are_judged_by_rows_that_are_not_negative():
    facts = Facts(8, [], [], shrinks=False, tables=[Table(3), Table(2, need=16.0)])
    three, two = blocks_of({"name": "statistics"}, "statistics", {"statistics": 0.1}, facts)
    assert (three.centre.size, two.centre.size, three.clip) == (3, 2, 1.0)
    whole = math.sqrt(1.0 + 4.0)
    assert three.deviations == pytest.approx(9 * 0.1 * whole * math.sqrt(2.0) / 8)
    assert two.deviations == pytest.approx(three.deviations / 2)
    [block] = blocks_of(
        {"name": "ridge", "clip_norm": 2.0}, "moments", {"moments": 0.1}, Facts(8, [], [], shrinks=False, features=3)
    )
    assert (block.centre.size, block.clip) == (25, 6.0)
    assert block.deviations == pytest.approx(9 * 0.1 * math.sqrt(2.0) * 6.0 / 8)


def test_the_tables_of_the_protocol_are_those_of_a_silo():
    asked = asked_statistics(silos()["clinic"])
    tables, own = tables_of(asked, "", 2), parsed(asked["columns"], asked["statistics"])
    assert [table.cells for table in tables] == [table.size for table in own]
    assert ratios(tables) == pytest.approx(list(noise_ratios(own).values()))


def test_a_single_local_step_is_judged_alone():
    local = {"name": "local-sgd", "clip_norm": 1.0, "step_size": 0.1, "local_steps": 1}
    [block] = blocks_of(local, "local", {"local": 0.01}, Facts(8, [np.zeros(2)], [], shrinks=False))
    allowed = 0.1 * (1.0 + 9 * 0.01 * 2 / 8)
    assert block.ratio(np.array([0.99 * allowed, 0.0], np.float32)) < 1.0
    assert block.ratio(np.array([1.01 * allowed, 0.0], np.float32)) > 1.0


def test_local_steps_are_judged_from_where_the_broadcast_leads():
    start = np.array([1e8, 0.0, math.nan])
    local = {"name": "local-sgd", "clip_norm": 1.0, "step_size": 0.1, "local_steps": 2}
    [block] = blocks_of(local, "local", {"local": 0.01}, Facts(8, [start], [], shrinks=False))
    assert isinstance(block, Block)
    assert block.ratio(np.array([1e8, 0.2, math.nan], np.float32)) < 1.0
    assert block.ratio(np.array([1e8, 0.3, math.nan], np.float32)) > 1.0
    assert block.ratio(np.array([1e8 + 1e4, 0.0, math.nan], np.float32)) > 1.0
    assert block.ratio(np.array([1e8, math.inf, math.nan], np.float32)) == math.inf
