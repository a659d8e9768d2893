"""What a release costs in each channel, beside one at the door: the source of the weights in `experiments.audit.suite`.

python -m experiments.audit.costs
"""

from __future__ import annotations

import time

from experiments.audit.table import SETTINGS, Setting, subject
from tacit.plans.catalogue import find

NAMES = ("schedule", "without replacement", "shuffled sum", "shuffled reports", "pairwise", "trusted server")


def seconds_of(setting: Setting, trials: int) -> float:
    """Processor time of one release in so many trials, without what is compiled and stored once."""
    target = subject(find("mb-sgd"), setting, epsilon=1.0, delta=1e-5).target
    assert target is not None
    scene = target.scenes(canary="opposite", kind=None, seed=0)[0]
    for world in (0, 1):
        scene.draw(world, trials // 10)
    began = time.process_time()
    for world in (0, 1):
        scene.draw(world, trials // 2)
    return (time.process_time() - began) / (trials * setting.rounds)


def main(trials: int = 1000) -> None:
    """Print microseconds, and how many releases at the door one is worth."""
    found = {own.name: seconds_of(own, trials) for own in SETTINGS if own.name in NAMES}
    for name, seconds in found.items():
        print(f"{name}: {1e6 * seconds:.0f} us, {seconds / found['schedule']:.2f}", flush=True)


if __name__ == "__main__":
    main()
