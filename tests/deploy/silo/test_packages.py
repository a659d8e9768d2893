"""Models of installed packages at a silo: what the owner lists is trained, and nothing else is even imported."""

import hashlib
import importlib.util
import json
import marshal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import tacit
from tacit.cli import silo as silo_cli
from tacit.deploy.descriptions import differences
from tacit.deploy.server.deployment import check_study, plan_for
from tacit.deploy.silo.backbones import with_features
from tacit.deploy.silo.policy import (
    PolicyError,
    digest,
    files_of,
    load_description,
    load_policy,
    plain_policy,
    policy_from,
)
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.wire import Answer, Consent, Error, Hello, Message, Propose, parse_response, read_arrays
from tacit.errors import TacitError
from tacit.models import from_torch
from tacit.objectives import logistic
from tacit.objectives.installed import BACKBONES, installed, installed_names, loaded
from tacit.objectives.models import built
from tacit.objectives.objective import Architecture
from tacit.plans.spec import StudyError, parse_study, study_from
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, policy_tree, records_of, said
from tests.deploy.silo.packaged import PACKAGE, forget, install

OBJECTIVE = {"model": "chest-net", "model_options": {"width": 3}}


@pytest.fixture
def source(tmp_path, monkeypatch):
    place = tmp_path / "site-packages"
    path = install(place)
    monkeypatch.syspath_prepend(place)
    forget()
    yield path
    forget()


def listed(*names):
    found = [installed(name) for name in names]
    return {own.name: {"version": own.version, "digest": own.digest} for own in found}


@pytest.fixture
def client(source, tmp_path, monkeypatch):
    monkeypatch.setenv(NOISE_OFF, "1")
    home, policy = make_home(tmp_path / "silo", records_of(1, 40), allow={"models": listed("chest-net")}, test=True)
    service = SiloService(policy, records_of(1, 40), home, noise_off=True)
    yield LocalClient(service)
    service.close()


def pinned(**objective):
    return {**OBJECTIVE, "model_digest": installed("chest-net").digest, **objective}


def refusal(client, plan):
    return parse_response(said(client, Propose(plan=plan))[0])


def test_a_listed_model_is_trained_and_hello_tells_of_it(client):
    assert client.ask(Hello())[0].models == {"chest-net": installed("chest-net").digest}
    assert PACKAGE not in sys.modules
    plan = plan_of({"name": "mb-sgd"}, pinned())
    assert isinstance(client.ask(Propose(plan=plan))[0], Consent)
    specs, payload = broadcast_of(plan, 0.3)
    assert [spec.shape for spec in specs] == [(3,), (3, 5), (1,), (1, 3)]
    reply, body = client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)
    assert isinstance(reply, Message)
    assert max(np.abs(leaf).max() for leaf in read_arrays(reply.arrays, body)) > 1e-3


def test_a_plan_with_an_unknown_model_is_refused_and_nothing_is_imported(client):
    for objective, words in (
        ({"model": "normed"}, "expected a model among linear, mlp, cnn, chest-net; no other code is loaded"),
        ({"model": "os"}, "no other code is loaded"),
        (OBJECTIVE, "expected model_digest="),
        ({**OBJECTIVE, "model_digest": "0" * 64}, "expected model_digest="),
    ):
        found = refusal(client, plan_of({"name": "mb-sgd"}, objective))
        assert isinstance(found, Error)
        assert words in found.text
    assert PACKAGE not in sys.modules


def test_a_package_whose_source_has_changed_is_refused(client, source):
    plan = plan_of({"name": "mb-sgd"}, pinned())
    text = source.read_text()
    source.write_text(text.replace("nn.Tanh()", "nn.ReLU()"))
    found = refusal(client, plan)
    assert (found.code, "not the one that the owner has listed" in found.text) == ("model", True)
    assert client.ask(Hello())[0].models == {}
    # The digest of what is there now does not help: the owner has listed another.
    changed = plan_of({"name": "mb-sgd"}, {**OBJECTIVE, "model_digest": installed("chest-net").digest})
    assert refusal(client, changed).code == "model"
    assert PACKAGE not in sys.modules
    source.write_text(text)
    assert isinstance(client.ask(Propose(plan=plan))[0], Consent)
    (source.parent / "more.py").write_text("x = 1\n")
    assert refusal(client, plan.model_copy(update={"name": "again"})).code == "model"
    assert refusal(client, plan_of({"name": "mb-sgd"}, pinned(), name="again")).code == "model"


def test_a_source_that_changed_after_it_was_imported_is_not_used(client, source):
    assert isinstance(client.ask(Propose(plan=plan_of({"name": "mb-sgd"}, pinned())))[0], Consent)
    source.write_text(source.read_text() + "\n# new\n")
    folder = client.service.home.folder / "policy.toml"
    before, after = client.service.policy.allow.models["chest-net"].digest, installed("chest-net").digest
    folder.write_text(folder.read_text().replace(before, after))
    found = refusal(client, plan_of({"name": "mb-sgd"}, pinned()))
    assert "has changed since it was imported" in found.text


def test_what_was_compiled_of_another_source_is_not_executed(client, source):
    other = compile("raise SystemExit('not what the owner has read')", str(source), "exec")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir(exist_ok=True)
    # The first number says that the source is not to be compared.
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    cached.write_bytes(head + marshal.dumps(other))
    assert isinstance(client.ask(Propose(plan=plan_of({"name": "mb-sgd"}, pinned())))[0], Consent)


@pytest.mark.parametrize("place", ["changed", "new", "linked"])
def test_a_module_that_is_imported_later_is_what_was_digested(source, tmp_path, place):
    late, elsewhere = source.parent / "late.py", tmp_path / "elsewhere"
    late.write_text("good = True\n")
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("good = False\n")
    if place == "linked":
        (source.parent / "linked").symlink_to(elsewhere)
    loaded("chest-net", installed("chest-net").digest)
    assert importlib.import_module(f"{PACKAGE}.late").good
    del sys.modules[f"{PACKAGE}.late"]
    late.write_text("good = False\n")
    (source.parent / "new.py").write_text("good = False\n")
    name = "late" if place == "changed" else place
    with pytest.raises(TacitError, match="is not imported"):
        importlib.import_module(f"{PACKAGE}.{name}")


def test_a_module_with_batch_normalisation_is_refused_by_the_name_of_its_layer(source, tmp_path):
    home, policy = make_home(tmp_path / "silo", records_of(1, 40), allow={"models": listed("normed")})
    service = SiloService(policy, records_of(1, 40), home)
    own = {"model": "normed", "model_digest": installed("normed").digest}
    found = refusal(LocalClient(service), plan_of({"name": "mb-sgd"}, own))
    service.close()
    assert "layer '1' (BatchNorm1d) mixes the records" in found.text


def test_a_model_that_a_record_makes_raise_tells_so_once_and_is_used_no_more(source, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(NOISE_OFF, "1")
    records = records_of(1, 40)
    records["x"][7, 0] = 1e6
    home, policy = make_home(tmp_path / "silo", records, allow={"models": listed("reading")}, test=True)
    service = SiloService(policy, records, home, noise_off=True)
    client, own = LocalClient(service), {"model": "reading", "model_digest": installed("reading").digest}
    plans = [plan_of({"name": "mb-sgd"}, own, name=name) for name in ("one", "two")]
    for plan in plans:
        assert isinstance(client.ask(Propose(plan=plan))[0], Consent)
    specs, payload = broadcast_of(plans[0], 0.3)
    told = [refused_answer(client, Answer(study=plan.study, round=0, arrays=specs), payload) for plan in plans]
    records["x"][7, 0] = 0.0
    told.append(refused_answer(client, Answer(study=plans[0].study, round=0, arrays=specs), payload))
    assert refusal(client, plan_of({"name": "mb-sgd"}, own, name="three")).code == "model"
    service.close()
    assert {(error.code, error.text) for error in told} == {
        ("model", "the model reading has failed at this silo; its owner's log says how")
    }
    assert "IndexError" in caplog.text
    assert "1000000" not in caplog.text


def refused_answer(client, request, payload):
    return parse_response(said(client, request, payload)[0])


def test_a_server_pins_its_own_source_and_says_which_silo_differs(client, source):
    told = client.ask(Hello())[0]
    tree = {"name": "s", "data": {"name": "silo"}, "objective": OBJECTIVE, "privacy": {"epsilon": 1.0}}
    study = study_from({**tree, "algorithm": {"name": "mb-sgd", "num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0}})
    check_study(study, 0)
    plan = plan_for(study, [told, told.model_copy(update={"silo": "b"})], {}, proposer="tester")
    assert plan.objective == {**pinned(), "regulariser": "zero", **{k: [] for k in ("hidden", "channels")}}
    without = told.model_copy(update={"silo": "b", "models": {}})
    with pytest.raises(StudyError, match="b does not have it, or its owner has not listed it"):
        plan_for(study, [told, without], {}, proposer="tester")
    other = told.model_copy(update={"silo": "b", "models": {"chest-net": "1" * 64}})
    with pytest.raises(StudyError, match="b has the source 111111111111"):
        plan_for(study, [told, other], {}, proposer="tester")


def test_the_command_lists_what_a_policy_can_allow(source):
    assert {"chest-net", "normed"} <= set(installed_names())
    shown = CliRunner().invoke(silo_cli.silo_app, ["installed"]).output
    assert f'[allow.models.chest-net]\nversion = "1.2"\ndigest = "{installed("chest-net").digest}"' in shown
    rows = json.loads(CliRunner().invoke(silo_cli.silo_app, ["installed", "--json"]).output)
    assert {"kind": "model", "name": "normed", "version": "1.2", "digest": installed("normed").digest} in rows
    assert PACKAGE not in sys.modules


def test_a_policy_without_models_looks_as_before(client):
    assert "models" in plain_policy(client.service.policy)["allow"]
    plain = client.service.policy.model_copy(
        update={"allow": client.service.policy.allow.model_copy(update={"models": {}})}
    )
    assert "models" not in plain_policy(plain)["allow"]
    assert "models" not in json.loads(client.ask(Hello())[0].model_copy(update={"models": {}}).model_dump_json())


def body_of(folder, name="small-body"):
    """The section of a backbone, and its weights in the folder."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    path = folder / "body.safetensors"
    save_file(body.state_dict(), path)
    path.chmod(0o600)
    found = installed(name, BACKBONES)
    pinned = {"name": name, "version": found.version, "digest": found.digest, "weights": path.name}
    return {**pinned, "weights_digest": hashlib.sha256(path.read_bytes()).hexdigest()}, body


def home_with(tmp_path, section):
    records = records_of(1, 40)
    home, _ = make_home(tmp_path / "s", records)
    section = section(home.folder) if callable(section) else section
    tree = policy_tree("s", data={"backbone": section})
    (home.folder / "policy.toml").write_text(tomli_w.dumps(tree))
    return home, load_policy(home.folder / "policy.toml"), records


def test_features_of_a_backbone_are_made_once_and_kept_for_the_owner_alone(source, tmp_path):
    home, policy, records = home_with(tmp_path, lambda folder: body_of(folder)[0])
    made = with_features(policy, home.folder, records)
    body = body_of(tmp_path)[1]
    np.testing.assert_allclose(made["x"], body(torch.from_numpy(records["x"])).detach().numpy(), atol=1e-6)
    [kept] = home.folder.glob("features-*.npy")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept in files_of(home.folder, policy, home.counter)
    (home.folder / "body.safetensors").unlink()
    np.testing.assert_array_equal(with_features(policy, home.folder, records)["x"], made["x"])
    described = load_description(policy, home.folder, made)
    assert described.features == (3,)
    assert described.backbone == policy.data.backbone.meaning
    service = SiloService(policy, made, home, description=described, identity=digest(records))
    client = LocalClient(service)
    told = client.ask(Hello())[0]
    assert (told.features, told.schema_digest) == ((3,), described.digest)
    plan = plan_of({"name": "mb-sgd"}, features=(3,), schema_digest=described.digest)
    assert isinstance(client.ask(Propose(plan=plan))[0], Consent)
    # Another backbone is another meaning: its plans are refused before anything is priced.
    other = described.model_copy(update={"backbone": "1" * 64})
    found = refusal(client, plan_of({"name": "mb-sgd"}, features=(3,), schema_digest=other.digest))
    assert found.code == "schema"
    assert "features are of the backbone" in differences(described, other)[0]
    service.close()


def test_features_that_a_crash_has_cut_short_are_computed_again(source, tmp_path):
    home, policy, records = home_with(tmp_path, lambda folder: body_of(folder)[0])
    made = with_features(policy, home.folder, records)["x"]
    [kept] = home.folder.glob("features-*.npy")
    whole = kept.read_bytes()
    for length in (0, 7, len(whole) - 1):
        kept.write_bytes(whole[:length])
        np.testing.assert_array_equal(with_features(policy, home.folder, records)["x"], made)
        assert kept.read_bytes() == whole
    assert list(home.folder.glob(".*.new")) == []


def test_the_account_stays_that_of_the_records_when_a_backbone_comes(source, tmp_path):
    home, policy, records = home_with(tmp_path, lambda folder: body_of(folder)[0])
    plain = policy_from(policy_tree("s"))
    SiloService(plain, records, home).close()
    made = with_features(policy, home.folder, records)
    described = load_description(policy, home.folder, made)
    SiloService(policy, made, home, description=described, identity=digest(records)).close()
    with pytest.raises(TacitError):
        SiloService(policy, made, home, description=described).close()


def test_backbones_that_mix_or_are_not_as_listed_are_refused(source, tmp_path):
    home, policy, records = home_with(tmp_path, lambda folder: body_of(folder, "mixing-body")[0])
    with pytest.raises(PolicyError, match="this backbone mixes records"):
        with_features(policy, home.folder, records)
    forget()
    section, _ = body_of(home.folder)
    for changes, words in (
        ({"digest": "0" * 64}, "not installed as listed"),
        ({"version": "9"}, "not installed as listed"),
        ({"weights_digest": "0" * 64}, "it is another file"),
        ({"weights": "missing.safetensors"}, "No such file"),
    ):
        wrong = policy_from(policy_tree("s", data={"backbone": {**section, **changes}}))
        with pytest.raises(PolicyError, match=words):
            with_features(wrong, home.folder, records)
    assert not list(home.folder.glob("features-*"))
    with pytest.raises(PolicyError, match="leave columns out"):
        policy_from(policy_tree("s", data={"backbone": section, "columns": "schema.toml"}))


def test_options_that_a_model_does_not_have_are_named_with_those_that_it_has(source):
    with pytest.raises(TacitError, match="Unknown option of chest-net 'widht'; did you mean 'width'"):
        built(Architecture("chest-net", {"features": [5], "outputs": 1, "widht": 3}))
    with pytest.raises(TacitError, match=r"Install the package that registers it \(entry point tacit.models\)"):
        built(Architecture("lung-net", {"features": [5], "outputs": 1}))
    with pytest.raises(StudyError, match=r"entry point tacit\.models"):
        parse_study('name = "a"\n[objective]\nmodel = "lung-net"\n')


def test_the_price_at_the_door_of_a_torch_model_is_that_of_a_model_of_ours_and_of_a_fit(client):
    said = {}
    for model in (pinned(), {"model": "mlp", "hidden": [3]}):
        plan = plan_of({"name": "mb-sgd"}, model, name=f"priced-{model['model']}", epsilon=0.4)
        said[model["model"]] = client.ask(Propose(plan=plan))[0]
        assert isinstance(said[model["model"]], Consent)
    one, other = (said[name].model_dump(exclude={"study", "left"}) for name in ("chest-net", "mlp"))
    assert one == other
    module = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = tacit.fit(
            tacit.Problem(from_torch(module, logistic())),
            [records_of(1, 40)],
            tacit.mb_sgd(step_size=0.2, num_rounds=4),
            budget=tacit.Budget(epsilon=0.4, delta=1e-6),
            clip_norm=0.7,
            measure_every=0,
        )
    price = fit.silos[0].price
    assert one["epsilon"] <= 0.4
    assert one["epsilon"] == pytest.approx(price.epsilon, rel=0.02)
    assert next(iter(one["noise_multipliers"].values())) == pytest.approx(
        next(iter(fit.silos[0].multipliers.values())), rel=0.02
    )
