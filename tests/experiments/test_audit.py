"""The repository's audit: printed claims that are exceeded are refuted, and violations are told."""

import json
from pathlib import Path

import pytest

from experiments.audit.card import card
from experiments.audit.fair import BATCH, RECORDS, ROUNDS, printed_fair_claim
from experiments.audit.papers import printed_claim
from experiments.audit.suite import page, violations
from tacit.plans.catalogue import paper_noise
from tacit.privacy import price
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass_experiments


@pytest.mark.parametrize("epsilon", [12.0, 18.0])
def test_printed_noise_with_replacement_exceeds_its_claim(epsilon):
    found = printed_claim(epsilon, trials=20_000, seed=0)
    assert found.violated
    assert found.epsilon_lower_bound > 1.5 * epsilon


def test_enough_noise_is_not_refuted():
    """At a small epsilon the printed formula holds; the bound stays below what the accountant certifies."""
    found = printed_claim(1.5, trials=20_000, seed=0)
    assert not found.violated


def test_the_proof_stays_below_the_certified_price():
    noise = multi_pass_experiments(
        Setting(records=1234, num_rounds=50, batch_size=370, epsilon=12.0, delta=1 / 1234**2, sampling="wr")
    )
    assert (
        printed_claim(12.0, trials=20_000, seed=1).epsilon_lower_bound < price(noise.events, delta=noise.delta).epsilon
    )


@pytest.mark.parametrize(("epochs", "at_least"), [(False, 5.0), (True, 4.0)])
def test_the_printed_design_is_refuted(epochs, at_least):
    """Claimed 1; priced with the batch known it is 7.1 and 5.3, and an attack proves most of that."""
    found = printed_fair_claim(1.0, trials=400_000, seed=0, epochs=epochs)
    assert found.violated
    sampling = "one-pass" if epochs else "wor"
    terms = {"records": RECORDS, "num_rounds": ROUNDS, "batch_size": BATCH, "epsilon": 1.0, "delta": 1 / RECORDS**2}
    priced = paper_noise("steffle", sampling=sampling, **terms).epsilon_certified
    assert at_least < found.epsilon_lower_bound <= priced


def test_violations_are_told():
    row = {"label": "x", "canary": "opposite", "epsilon_claimed": 1.0, "required": 0.85, "tightness": 0.5}
    row |= {"lower_bounds": {"0.95": 2.1, "0.99": 2.05, "0.9999": 2.0}}
    # One row among hundreds may pass its claim at 95% by chance.
    loose = {**row, "lower_bounds": {"0.95": 1.01, "0.99": 0.99, "0.9999": 0.5}}
    swap = {"algorithm": "a", "model": "m", "kind": "k", "search": "s", "largest_share": 1.2, "violated": True}
    told = violations({"mechanisms": [row, loose], "sensitivity": [swap], "one_run": []})
    assert len(told) == 3
    assert "proven 2.000" in told[0]
    assert "tightness 0.50" in told[1]
    assert "1.2" in told[2]


def test_the_page_follows_from_the_findings():
    folder = Path(__file__).parents[2] / "results" / "audit"
    found = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert page(found) == (folder / "audit.md").read_text(encoding="utf-8")
    assert violations(found) == found["violations"] == []
    told = page({**found, "violations": ["mb-sgd, schedule: too much"]})
    assert "\n## Violations\n\n- mb-sgd, schedule: too much\n\n## Mechanisms\n" in told


def test_the_card_of_the_gallery_follows_from_the_findings():
    row = {"path": "door", "required": 0.7, "tightness": 0.91, "label": "mb-sgd, schedule"}
    rows = [row, {**row, "tightness": 0.8, "label": "ridge, schedule"}, {**row, "required": None, "tightness": 0.1}]
    rows += [{**row, "path": "simulated", "tightness": 0.2}]
    printed = [{"source": "Theorem 3", "epsilon_claimed": e, "violated": e > 6} for e in (6.0, 12.0)]
    found = {"mechanisms": rows, "sensitivity": [{}], "violations": [], "papers": printed}
    said = card(found)
    assert said.verdict == "reproduced"
    assert "no violation in 4 attacks on releases, 3 of them at the door" in said.found
    assert "proven: 0.80 (schedule)." in said.found
    assert said.found.endswith("provably exceeded: Theorem 3 at 12")
    refuted = card({**found, "violations": ["one"]})
    assert (refuted.verdict, refuted.found[:14]) == ("differs", "1 violation(s)")
