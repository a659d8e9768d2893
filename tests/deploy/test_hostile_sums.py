"""Hostile broadcasts through real shufflers, with noise: the sums that a server reads respect clip and noise."""

from soak.sums import attack


def test_no_shuffled_sum_lies_beyond_clip_and_noise():
    assert 0.0 < attack(24, seed=1, say=lambda *_, **__: None) <= 1.0
