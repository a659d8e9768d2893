"""The page on PyTorch is true: its code runs, and its package brings the model that it says."""

import hashlib
import shutil
import sys
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import jax
import numpy as np
import tomli_w
import torch

from tacit.deploy.silo.backbones import with_features
from tacit.deploy.silo.policy import AllowSection, DataSection, digest, load_description, load_policy
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Consent, Hello, Propose
from tacit.objectives.installed import BACKBONES, installed
from tacit.plans.assemble import problem_of
from tacit.plans.spec import ObjectiveSection, study_from
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, policy_tree
from tests.deploy.silo.packaged import forget
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


def as_installed(place):
    """The example as an owner has installed it."""
    shutil.copytree(PACKAGE / "clinic_models", place / "clinic_models", ignore=shutil.ignore_patterns("__pycache__"))
    groups = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    info = place / "clinic_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic_models\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in own.items()) for group, own in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


def test_the_study_of_the_page_names_a_model_and_weights_of_classes(tmp_path, monkeypatch):
    place = tmp_path / "site-packages"
    place.mkdir()
    as_installed(place)
    monkeypatch.syspath_prepend(place)
    sections = [tomllib.loads(block) for block in blocks("docs/pytorch.md", "toml") if block.startswith("[objective]")]
    found = ObjectiveSection(**sections[0]["objective"])
    assert (found.model, found.model_options, found.class_weights) == ("chest-net", {"width": 16}, (1.0, 3.0))
    problem = problem_of(study_with(found), Facts())
    assert problem.objective.model.outside is not None
    forget()


class Facts:
    name, task, num_classes, feature_shape, feature_norm = "clinics", "binary", 2, (7,), None


def study_with(section):
    algorithm = {"name": "mb-sgd", "num_rounds": 2, "step_size": 0.1}
    tree = {"name": "a", "data": {"name": "csv"}, "algorithm": algorithm}
    return study_from(tree | {"objective": section.model_dump(exclude_none=True)})


def test_the_example_backbone_makes_features_at_a_daemon(tmp_path, monkeypatch):
    place = tmp_path / "site-packages"
    place.mkdir()
    as_installed(place)
    monkeypatch.syspath_prepend(place)
    forget()
    found = installed("small-conv", BACKBONES)
    rng = np.random.default_rng(0)
    records = {"x": rng.uniform(-1, 1, (12, 32, 32, 3)).astype("float32"), "y": rng.integers(0, 2, 12).astype("int32")}
    home, _ = make_home(tmp_path / "s", records)
    weights = home.folder / "small_conv.safetensors"
    weights.write_bytes((PACKAGE / "clinic_models" / "small_conv.safetensors").read_bytes())
    weights.chmod(0o600)
    pinned = hashlib.sha256(weights.read_bytes()).hexdigest()
    section = {"name": "small-conv", "version": found.version, "digest": found.digest}
    section |= {"weights": weights.name, "weights_digest": pinned}
    (home.folder / "policy.toml").write_text(tomli_w.dumps(policy_tree("s", data={"backbone": section})))
    policy = load_policy(home.folder / "policy.toml")
    made = with_features(policy, home.folder, records)
    assert pinned == sys.modules["clinic_models"].SMALL_CONV
    described = load_description(policy, home.folder, made)
    service = SiloService(policy, made, home, description=described, identity=digest(records))
    client = LocalClient(service)
    assert client.ask(Hello())[0].features == (84,)
    plan = plan_of({"name": "mb-sgd"}, features=(84,), schema_digest=described.digest)
    assert isinstance(client.ask(Propose(plan=plan))[0], Consent)
    specs, payload = broadcast_of(plan, 0.1)
    assert client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)[0].type == "message"
    service.close()
    forget()


def test_policies_of_the_page_have_the_fields_of_policies():
    page = (ROOT / "docs/pytorch.md").read_text(encoding="utf-8")
    assert all(f"\n{'    ' * indented}{name} = " in page for name, indented in (("weights_digest", 0), ("version", 1)))
    assert "models" in AllowSection.model_fields
    assert "backbone" in DataSection.model_fields
