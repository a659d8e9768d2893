"""SteFFLe as it is printed, attacked: its claim does not survive a server that knows features and targets.

Gupta et al. (arXiv:2411.07889, Theorem 3.3) protect the sensitive attribute alone. In each round a silo sends the
gradient of the loss of a batch without noise and both gradients of the fairness term of the same batch with noise that
relies on the batch being secret. The first message is a function of what the attacker knows, so it tells which records
are in the batch. Given the batch, the two noisy messages together are one Gaussian whose mean moves by 1/z if the
record is in it, where z is the joint multiplier of the printed noise: the worlds of a transcript are then N(k/z) and
N(0) over the k rounds that have the record. The attacker's distributions are exact, so that trials are coins, as in
`experiments.audit.papers`.
"""

from __future__ import annotations

import math

import numpy as np

from experiments.audit.papers import Exceeded, promising, proven
from tacit.plans.catalogue import paper_noise

RECORDS, ROUNDS, BATCH = 1234, 50, 88


def printed_fair_claim(
    epsilon: float,
    *,
    trials: int,
    seed: int,
    epochs: bool,
    confidence: float = 0.95,
    records: int = RECORDS,
    rounds: int = ROUNDS,
    batch: int = BATCH,
) -> Exceeded:
    """Attack the printed noise for this epsilon at delta = 1/n^2, with fresh batches or (``epochs``) fixed passes."""
    delta = 1 / records**2
    printed = paper_noise("steffle", records=records, num_rounds=rounds, batch_size=batch, epsilon=epsilon, delta=delta)
    assert printed is not None
    multiplier = printed.releases[0].noise_multiplier
    generator = np.random.default_rng(seed)

    def losses() -> np.ndarray:
        """Log-likelihood ratios of transcripts drawn from the world with the record."""
        times = (
            np.full(trials, math.ceil(rounds / (records // batch)))
            if epochs
            else generator.binomial(rounds, batch / records, trials)
        )
        separation = np.sqrt(times) / multiplier
        return separation * generator.standard_normal(trials) + separation**2 / 2

    chosen = promising(losses(), delta, confidence)
    bound = chosen if proven(generator, losses(), chosen, confidence) > delta else 0.0
    how = "fixed epochs" if epochs else "fresh batches"
    return Exceeded(
        epsilon,
        bound,
        delta,
        confidence,
        trials,
        multiplier,
        records,
        batch,
        rounds,
        f"SteFFLe as printed (arXiv:2411.07889, Theorem 3.3), {how}, sensitive attribute",
    )
