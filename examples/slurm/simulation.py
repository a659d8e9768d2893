"""One simulation on all nodes of a Slurm job: ``srun python simulation.py``, as in ``job.sh`` beside it.

Every process runs this program with the same key and the same silos, and plays those that lie on its own devices.
Without Slurm it runs on one machine and gives the same numbers.
"""

import os

import jax
import numpy as np

if "SLURM_JOB_ID" in os.environ:
    # Before anything else of jax: Slurm says where the others are.
    jax.distributed.initialize()

from tacit import Terms, mb_sgd
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tacit.simulate.sharding import spread

SILOS, RECORDS, FEATURES = 64, 100, 5


def main() -> None:
    """Sixty-four silos, spread over all devices of all nodes; the first process says what came of it."""
    rng = np.random.default_rng(0)
    rule = rng.standard_normal(FEATURES)
    x = rng.standard_normal((SILOS, RECORDS, FEATURES)).astype(np.float32)
    tables = [{"x": own, "y": (own @ rule > 0).astype(np.int32)} for own in x]
    problem = Problem(Objective(linear(FEATURES, 1), logistic()))
    terms = Terms(clip_norm=1.0, noise_multiplier=1.0, batch_size=20, sampling="wor")
    algorithm = mb_sgd(step_size=0.5, num_rounds=20)(problem, terms)
    start = problem.objective.init(jax.random.key(0))
    outcome = simulate(algorithm, start, spread(enrol(tables)), key=jax.random.key(1), noise="each")
    weights = np.asarray(jax.tree.leaves(outcome.params)[-1].addressable_data(0)).ravel()
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {len(jax.devices())} devices:", *(f"{w:.4f}" for w in weights))


if __name__ == "__main__":
    main()
