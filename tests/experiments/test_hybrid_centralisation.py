"""Attributes that lie at few holders: the same records, fewer and larger holders, and less noise in their mean."""

import numpy as np
import pytest

from experiments.fair.training import Scale, methods, noise_at
from experiments.hybrid_centralisation import DATA, DIVIDED, arenas
from tacit import data

SCALE = Scale(seeds=2, tuning=1, rounds=6, records_per_silo=300)


@pytest.fixture(scope="module")
def shown():
    try:
        data.load(DATA, sensitive="sex")
    except Exception as error:
        pytest.skip(f"{DATA} is not here: {error}")
    return arenas(SCALE, (1, 4))


def test_every_record_has_one_holder(shown):
    divided = shown[DIVIDED].federation(0)
    whole = np.sort(np.concatenate([silo.train["x"].sum(axis=1) for silo in divided.silos]))
    for name, holders in (("one holder", 1), ("4 holders", 4)):
        held = shown[name].federation(0)
        assert len(held.silos) == holders
        sizes = [len(silo.train["y"]) for silo in held.silos]
        assert max(sizes) - min(sizes) <= len(divided.silos)
        found = np.sort(np.concatenate([silo.train["x"].sum(axis=1) for silo in held.silos]))
        np.testing.assert_array_equal(found, whole)


def test_noise_of_the_mean_grows_with_the_root_of_holders(shown):
    noise = {}
    for name in ("one holder", "4 holders"):
        arena = shown[name]
        [ours] = [r for r in methods(arena.problem(), arena.frequencies(), arena.notion, 6) if r.name == "SteFFLe"]
        sizes = np.array([len(silo.train["y"]) for silo in arena.federation(0).silos])
        multipliers = noise_at(ours, sizes.tolist(), 1.0)
        weights = sizes / sizes.sum()
        noise[name] = float(np.sqrt(np.sum((weights * multipliers / sizes) ** 2)))
    assert noise["4 holders"] == pytest.approx(2 * noise["one holder"], rel=0.01)
