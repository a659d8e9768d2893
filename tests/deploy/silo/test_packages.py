"""Models of installed packages at a silo: what the owner lists is trained, and nothing else is even imported."""

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import silo as silo_cli
from tacit.deploy.server.deployment import check_study, plan_for
from tacit.deploy.silo.policy import plain_policy
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.wire import Answer, Consent, Error, Hello, Message, Propose, parse_response, read_arrays
from tacit.objectives.installed import installed, installed_names
from tacit.plans.spec import StudyError, study_from
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, records_of, said
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
    assert refusal(client, plan_of({"name": "mb-sgd"}, pinned(), name="again")).code == "model"


def test_a_source_that_changed_after_it_was_imported_is_not_used(client, source):
    assert isinstance(client.ask(Propose(plan=plan_of({"name": "mb-sgd"}, pinned())))[0], Consent)
    source.write_text(source.read_text() + "\n# new\n")
    folder = client.service.home.folder / "policy.toml"
    before, after = client.service.policy.allow.models["chest-net"].digest, installed("chest-net").digest
    folder.write_text(folder.read_text().replace(before, after))
    found = refusal(client, plan_of({"name": "mb-sgd"}, pinned()))
    assert "has changed since it was imported" in found.text


def test_a_module_with_batch_normalisation_is_refused_by_the_name_of_its_layer(source, tmp_path):
    home, policy = make_home(tmp_path / "silo", records_of(1, 40), allow={"models": listed("normed")})
    service = SiloService(policy, records_of(1, 40), home)
    own = {"model": "normed", "model_digest": installed("normed").digest}
    found = refusal(LocalClient(service), plan_of({"name": "mb-sgd"}, own))
    service.close()
    assert "layer '1' (BatchNorm1d) mixes the records" in found.text


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
    assert {"name": "normed", "version": "1.2", "digest": installed("normed").digest} in rows
    assert PACKAGE not in sys.modules


def test_a_policy_without_models_looks_as_before(client):
    assert "models" in plain_policy(client.service.policy)["allow"]
    plain = client.service.policy.model_copy(
        update={"allow": client.service.policy.allow.model_copy(update={"models": {}})}
    )
    assert "models" not in plain_policy(plain)["allow"]
    assert "models" not in json.loads(client.ask(Hello())[0].model_copy(update={"models": {}}).model_dump_json())
