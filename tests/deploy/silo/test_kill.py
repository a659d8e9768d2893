"""A daemon that is killed at random points: no ledger shows less than was released, and the study finishes."""

from tests.deploy.silo.killing import kill_often


def test_twenty_kills(tmp_path):
    tally = kill_often(tmp_path / "silo", 20, seed=1, rounds=12)
    assert tally.kills == 20
    assert tally.answers == 12 * tally.studies
    # The kills were not all between requests, or the test would show nothing.
    assert tally.during_requests >= 5
