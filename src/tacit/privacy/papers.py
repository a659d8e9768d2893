"""The papers' noise, looked up by the name of an algorithm."""

from collections.abc import Callable
from functools import partial

from tacit.privacy import lemma, theorems
from tacit.privacy.events import Sampling, positive, probability
from tacit.privacy.statements import PaperNoise, Setting

_THEOREMS: dict[str, Callable[[Setting], PaperNoise]] = {
    "mb-sgd": theorems.multi_pass,
    "local-sgd": theorems.local_sgd,
    "accelerated-mb-sgd": theorems.accelerated,
    "one-pass-accelerated": theorems.one_pass_accelerated,
    "prox-sgd": theorems.prox_sgd,
    "prox-svrg": theorems.prox_svrg,
    "prox-spider": theorems.prox_spider,
    "mu2-sgd": theorems.mu2_sgd,
    "steffle": theorems.steffle,
    "psgm": theorems.psgm,
    **{
        name: partial(lemma.shuffled_reports, algorithm=name)
        for name in ("ce-psgm", "ce-psgm-fg", "mb-psgm", "mb-psgm-fg")
    },
}


def paper_noise(
    algorithm: str,
    *,
    records: int,
    rounds: int,
    batch: int,
    epsilon: float,
    delta: float,
    sampling: Sampling | None = None,
    period: int | None = None,
    restarts: int = 1,
    local_steps: int = 1,
    silos: int = 1,
) -> PaperNoise | None:
    """The theorem's noise for an algorithm, or None if no paper states a theorem for it.

    Args:
        algorithm: Name as typed in a study, such as "mb-sgd" or "prox-spider".
        records: Records n of the silo.
        rounds: Rounds R (T for DP-mu^2 and SteFFLe; inner steps E*Q of one restart for SVRG).
        batch: Records K per mini-batch.
        epsilon: Requested epsilon.
        delta: Requested delta.
        sampling: How batches are drawn; by default what the theorem assumes.
        period: SPIDER: rounds between full gradients, q.
        restarts: SVRG: number of restarts S.
        local_steps: Local SGD and CE-PSGM: noisy local steps per participation.
        silos: CE-PSGM: silos M that take turns.

    Examples:
        >>> noise = paper_noise("mb-sgd", records=1234, rounds=50, batch=1234, epsilon=1.0, delta=1 / 1234**2,
        ...                     sampling="full")
        >>> round(noise.sigma_over_clip[0], 3), round(noise.ratio)
        (1.547, 31)
        >>> paper_noise("sgda", records=9, rounds=5, batch=9, epsilon=1.0, delta=1e-5) is None
        True
    """
    theorem = _THEOREMS.get(algorithm)
    if theorem is None:
        return None
    return theorem(
        Setting(
            records=records,
            rounds=rounds,
            batch=batch,
            epsilon=positive("epsilon", epsilon),
            delta=probability("delta", delta),
            sampling=sampling,
            period=period,
            restarts=restarts,
            local_steps=local_steps,
            silos=silos,
        )
    )
