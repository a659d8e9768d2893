"""``load``: names, defaults, and what it says when it cannot."""

import subprocess
import sys

import numpy as np
import pytest

import tacit
from tacit import data


def test_names():
    assert data.names() == (
        "heart-disease",
        "breast-cancer",
        "mnist",
        "cifar10",
        "adult",
        "acs-income",
        "credit-card",
        "california-housing",
        "insurance",
        "school",
        "tcga-brca",
    )


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("hart-disease", {}, "did you mean 'heart-disease'"),
        ("heart-disease", {"partition": "naturl"}, "did you mean 'natural'"),
        ("heart-disease", {"silos": 3}, "silos=3"),
        ("heart-disease", {"level": 0.5}, "level=0.5"),
        ("heart-disease", {"partition": "iid", "silos": 0}, "silos=0"),
        ("heart-disease", {"partition": "iid", "silos": 921}, "silos=921 <= 920"),
        ("heart-disease", {"partition": "iid", "silos": 900}, "none to train on"),
        ("heart-disease", {"partition": "attribute", "silos": 2, "level": 2.0}, "level=2.0"),
        ("heart-disease", {"partition": "attribute", "attribute": "height"}, "one of age"),
        ("heart-disease", {"partition": "digit-pairs"}, "only 'mnist'"),
        ("heart-disease", {"records_per_silo": 200}, "records_per_silo=200"),
        ("heart-disease", {"validation": 0.5, "test": 0.5}, "validation=0.5"),
        ("heart-disease", {"seed": -1}, "seed=-1"),
        ("heart-disease", {"scaling": "bounds"}, "it has features"),
        ("heart-disease", {"features": "many"}, "features='many'"),
        ("breast-cancer", {"partition": "natural"}, "silos of its own"),
        ("breast-cancer", {"partition": "attribute"}, "has none"),
        ("breast-cancer", {"scaling": "silo"}, "scaling='silo'"),
        ("breast-cancer", {"partition": "dirichlet", "silos": 60, "level": 0.001}, "silo 'silo"),
    ],
)
def test_mistakes_are_explained(name, arguments, words):
    with pytest.raises(data.DataError) as error:
        data.load(name, **arguments)
    assert words in str(error.value)


def test_an_empty_silo_is_named():
    with pytest.raises(data.DataError, match=r"silo 'silo \d\d' has \d+ records in all"):
        data.load("breast-cancer", partition="dirichlet", silos=60, level=0.001)


@pytest.mark.parametrize("kind", ["natural", "iid", "label", "one-class", "dirichlet", "attribute", "sorted-target"])
def test_every_partition_of_a_small_data_set(kind):
    federation = data.load("heart-disease", partition=kind, level=5.0 if kind == "dirichlet" else None)
    assert sum(len(s.train["y"]) + len(s.validation["y"]) + len(s.test["y"]) for s in federation.silos) == 920
    assert federation.partition.startswith(kind)


def test_records_per_silo():
    federation = data.load("heart-disease", records_per_silo=100)
    assert [len(silo.train["y"]) for silo in federation.silos] == [70] * 4


def test_shares_may_be_zero():
    federation = data.load("heart-disease", validation=0.0, test=0.0)
    assert [len(silo.train["y"]) for silo in federation.silos] == [303, 294, 123, 200]
    assert federation.silos[0].test["x"].shape == (0, 13)


def test_types():
    silo = data.load("breast-cancer").silos[0]
    assert silo.train["x"].dtype == np.float32
    assert silo.train["y"].dtype == np.int32
    assert "s" not in silo.train


def loaded_by(statement):
    """The modules that a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_data_is_light():
    """Neither jax nor the slow parts of scikit-learn and matplotlib load before they are needed."""
    assert not {"jax", "sklearn", "matplotlib"} & loaded_by("from tacit import data; data.load, data.summary")


def test_the_reader_of_a_silo_loads_no_data_set():
    """A daemon trusts what it imports with records: for a CSV file that is the reader alone."""
    loaded = loaded_by("from tacit.data.csv_silos import silo_records")
    assert {name for name in loaded if name.startswith("tacit.")} == {
        "tacit.data",
        "tacit.data.csv_silos",
        "tacit.data.encode",
        "tacit.data.federation",
        "tacit.data.schema",
        "tacit.errors",
    }
    assert not {"jax", "sklearn", "pandas", "scipy", "matplotlib"} & loaded


@pytest.mark.parametrize("module", [tacit, data])
def test_lazy_names_are_all_there(module):
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018
