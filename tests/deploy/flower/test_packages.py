"""A torch module of an installed package, trained by two real daemons over Flower; what is not as listed is refused."""

import importlib.util
import io
import os

import jax
import numpy as np
import pytest
import torch
from rich.console import Console

from experiments.parties import Consortium, Silo, train
from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import load_checkpoint
from tacit.deploy.server.coordinator import fresh_state
from tacit.deploy.silo.service import NOISE_OFF
from tacit.errors import TacitError
from tacit.models import load_model
from tacit.objectives.installed import installed
from tacit.plans.spec import study_from
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tests.deploy.silo.consortium import SEED, records_of
from tests.deploy.silo.packaged import forget, install
from tests.models.brought import largest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed")

SIZES = {"north": 30, "south": 40}
TABLES = {name: records_of(i, size) for i, (name, size) in enumerate(SIZES.items())}


def study_of(model):
    own = {"name": "mb-sgd", "num_rounds": 3, "step_size": 0.5, "clip_norm": 0.7}
    objective = {"model": model} | ({"model_options": {"width": 3}} if model == "chest-net" else {})
    tree = {"name": model, "data": {"name": "silo"}, "privacy": {"epsilon": 2.0, "delta": 1e-6}}
    return study_from({**tree, "objective": objective, "algorithm": own})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two daemons (test builds: no noise), their nodes and a SuperLink, all of which have the package."""
    root, patch = tmp_path_factory.mktemp("t"), pytest.MonkeyPatch()
    source = install(root / "packages")
    patch.syspath_prepend(root / "packages")
    paths = [str(root / "packages"), os.environ.get("PYTHONPATH", "")]
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    forget()
    found = [installed(name) for name in ("chest-net", "normed")]
    listed = {own.name: {"version": own.version, "digest": own.digest} for own in found}
    allow = {"algorithms": ["mb-sgd"], "channels": ["direct"], "min_silos": 2, "models": listed}
    policy = {"budget": {"epsilon": 30.0, "delta": 1e-5}, "pad_seconds": 0.0, "test": True, "allow": allow}
    data = {"file": "records.npz", "task": "binary", "classes": 2}
    silos = [Silo(name, data, dict(policy), table) for name, table in TABLES.items()]
    consortium = Consortium(root / "c", silos, shufflers=(), **{NOISE_OFF: "1"})
    consortium.start_all()
    consortium.check = lambda: None
    yield consortium, root, source
    consortium.stop()
    forget()
    patch.undo()


def played(world, study):
    consortium, root, _ = world
    terms = {"evaluate": False, "seed": SEED, "round_seconds": 600.0, "patience": 600.0}
    return train(consortium, study, root / "runs", Console(file=io.StringIO()), **terms)


def test_a_torch_module_is_trained_by_real_silos_as_in_the_simulation(world):
    torch.set_num_threads(1)
    folder = played(world, study_of("chest-net"))
    point = load_checkpoint(folder / "checkpoint.npz", fresh_state)
    builder = builder_from(point.plan, 1)
    _, key = jax.random.split(jax.random.key(SEED))
    quiet, start = builder.build(noise_multiplier=0.0), builder.problem.objective.init(key)
    expected = simulate(quiet, start, enrol(list(TABLES.values())), key=jax.random.key(SEED)).params
    model = load_model(folder / "model")
    assert largest(model.params, expected) < 1e-4
    assert largest(model.params, start) > 1e-2
    assert point.plan.objective["model_digest"] == installed("chest-net").digest
    assert np.isin(model.predict(TABLES["north"]["x"]), model.classes).all()


def test_batch_normalisation_and_a_changed_source_are_refused(world):
    with pytest.raises(TacitError, match=r"BatchNorm1d\) mixes the records"):
        played(world, study_of("normed"))
    source = world[2]
    source.write_text(source.read_text() + "\n# another source\n")
    with pytest.raises(TacitError, match="does not have it, or its owner has not listed it"):
        played(world, study_of("chest-net"))
