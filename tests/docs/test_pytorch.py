"""The page on PyTorch is true: its code runs, and its package brings the model that it says."""

import sys
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import jax
import torch

from tacit.deploy.silo.policy import AllowSection, DataSection
from tests.docs.test_documents import ROOT, blocks

PACKAGE = ROOT / "examples" / "clinic-models"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    space = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for block in blocks("docs/pytorch.md", "python"):
            exec(compile(block, "docs/pytorch.md", "exec"), space)
    assert "loss softmax" in capsys.readouterr().out
    assert isinstance(space["trained"], torch.nn.Module)
    assert [name for name, weight in space["adapted"].named_parameters() if weight.requires_grad] == [
        "0.up.weight",
        "3.weight",
        "3.bias",
    ]
    assert Path("body.safetensors").exists()


def test_the_example_package_brings_the_model_of_the_page(monkeypatch):
    entries = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]["tacit.models"]
    assert entries == {"chest-net": "clinic_models:chest_net"}
    monkeypatch.syspath_prepend(PACKAGE)
    make = EntryPoint("chest-net", entries["chest-net"], "tacit.models").load()
    model = make((7,), 3, width=16)
    assert model.init(jax.random.key(0))["0"]["weight"].shape == (16, 7)
    sys.modules.pop("clinic_models")


def test_policies_of_the_page_have_the_fields_of_policies():
    page = (ROOT / "docs/pytorch.md").read_text(encoding="utf-8")
    assert all(f"\n{'    ' * indented}{name} = " in page for name, indented in (("weights_digest", 0), ("version", 1)))
    assert "models" in AllowSection.model_fields
    assert "backbone" in DataSection.model_fields
