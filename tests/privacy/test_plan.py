"""From an algorithm to events: what is priced is what is sampled."""

import dataclasses

import pytest

from tacit.algorithm import Algorithm, Release, Round, Server, Silo
from tacit.privacy import PricingError, events_of

SERVER = Server(lambda state: state, lambda state, message: state)


def plan(schedule, participants="sampled", **changes):
    terms = {"clip": lambda work: 1.0, "noise_multiplier": 1.0, "batch_size": 4, "sampling": "poisson", **changes}
    part = Round(Silo(lambda work, record: record, Release(**terms)), SERVER, participants)
    plain = Round(dataclasses.replace(part.silo), SERVER, "all")
    return Algorithm(lambda params: params, {"a": plain, "b": part}, schedule, lambda state: state)


@pytest.mark.parametrize("field", ["batch_size", "capacity"])
def test_a_fraction_of_a_record_is_refused(field):
    with pytest.raises(PricingError, match=f"{field}=4.9"):
        events_of(plan("b" * 3, **{field: 4.9}), silo_index=0, silos=2, records=20)


def test_turns_are_counted_by_whose_they_are():
    """Turns go round within a kind of round: eight rounds, every second one b, two silos: each has two of b's turns."""
    counts = [
        {e.kind: e.count for e in events_of(plan("abababab", "in turn"), silo_index=i, silos=2, records=20)}
        for i in (0, 1)
    ]
    assert counts == [{"a": 4, "b": 2}, {"a": 4, "b": 2}]


def test_local_steps_and_caps_multiply():
    algorithm = plan("b" * 6)
    part = algorithm.rounds["b"]
    stepped = dataclasses.replace(part, silo=dataclasses.replace(part.silo, local_steps=3))
    [event] = events_of(
        dataclasses.replace(algorithm, rounds={"b": stepped}), silo_index=0, silos=2, records=20, max_participations=4
    )
    assert event.count == 12
