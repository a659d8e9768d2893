"""Models that reach a silo: kept whole, in its own folder, from the proposer of a study that it has answered."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.silo import models
from tacit.deploy.silo.models import find_model, kept_models
from tacit.deploy.silo.policy import load_policy
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Bundle, Finish, Propose, RefusalError, frame, parse_response, unframed
from tacit.errors import TacitError
from tests.deploy.silo.consortium import (
    PROPOSER,
    LocalClient,
    broadcast_of,
    bundle_of,
    make_home,
    plan_of,
    records_of,
    said,
)

PLAN = plan_of({"name": "mb-sgd"}, name="ward-7")
RECORDS = records_of(0, 40)


@pytest.fixture
def silo(tmp_path):
    """A silo that has answered one round of a study, which is over."""
    home, policy = make_home(tmp_path / "clinic", RECORDS)
    service = SiloService(policy, RECORDS, home)
    client = LocalClient(service)
    client.ask(Propose(plan=PLAN))
    specs, payload = broadcast_of(PLAN)
    client.ask(Answer(study=PLAN.study, round=0, arrays=specs), payload)
    client.ask(Finish(study=PLAN.study))
    yield client
    service.close()


def folder_of(silo):
    return silo.service.home.folder


def refused(silo, code, request, payload):
    before = files_of(silo)
    with pytest.raises(RefusalError) as caught:
        silo.ask(request, payload)
    assert caught.value.code == code, caught.value
    assert files_of(silo) == before
    return str(caught.value)


def files_of(silo):
    """Every file near the silo but its books, with its content."""
    near = folder_of(silo).parent.rglob("*")
    return {path: path.read_bytes() for path in near if path.is_file() and "ledger" not in path.name}


def test_a_model_is_kept_whole_with_its_owners_permissions_and_the_silos_own_price(silo):
    request, payload = bundle_of(PLAN.study)
    assert silo.ask(request, payload)[0].type == "kept"
    [row] = kept_models(folder_of(silo))
    place = folder_of(silo) / "models" / f"ward-7-{PLAN.study[:16]}"
    assert (row["path"], row["plan"], row["study"], row["proposer"]) == (str(place), "ward-7", PLAN.study, "tester")
    assert row["intact"]
    receipt = silo.ask(Finish(study=PLAN.study))[0]
    assert (row["epsilon"], row["delta"]) == (receipt.epsilon, receipt.delta)
    assert {path.name for path in place.iterdir()} == {"model.safetensors", "model.json", "README.md", "received.json"}
    assert b"".join((place / file.name).read_bytes() for file in request.files) == payload
    modes = {path.stat().st_mode & 0o777 for path in [*place.iterdir()]}
    assert (modes, place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == ({0o600}, 0o700, 0o700)
    # It can be sent again, and stays what it is.
    before = files_of(silo)
    assert silo.ask(request, payload)[0].type == "kept"
    assert files_of(silo) == before


def test_a_model_that_is_there_is_not_replaced_and_a_damaged_one_is(silo):
    silo.ask(*bundle_of(PLAN.study))
    assert "another model" in refused(silo, "model", *bundle_of(PLAN.study, card=b"# Another\n"))
    [row] = kept_models(folder_of(silo))
    card = folder_of(silo) / "models" / row["name"] / "README.md"
    card.write_text("changed")
    assert not kept_models(folder_of(silo))[0]["intact"]
    with pytest.raises(TacitError, match="not as it was received"):
        find_model(folder_of(silo), "ward-7")
    silo.ask(*bundle_of(PLAN.study))
    assert card.read_text() == "# A model\n"


def test_a_digest_that_does_not_fit_is_refused(silo):
    request, payload = bundle_of(PLAN.study)
    for place in range(3):
        files = list(request.files)
        files[place] = files[place].model_copy(update={"digest": "0" * 64})
        wrong = request.model_copy(update={"files": tuple(files)})
        assert f"{files[place].name} has another digest" in refused(silo, "model", wrong, payload)
    refused(silo, "model", request, payload + b"more")
    refused(silo, "model", request, payload[:-1])


@pytest.mark.parametrize(
    "name", ["../policy.toml", "/etc/passwd", "..", "", "policy.toml", "model.json/../../policy.toml", "run.sh", "a\0"]
)
def test_no_other_names_of_files_exist(silo, name):
    request, payload = bundle_of(PLAN.study)
    tree = json.loads(request.model_dump_json())
    tree["files"][1]["name"] = name
    before = files_of(silo)
    header, _ = said(silo, json.dumps(tree), payload)
    assert parse_response(header).code == "bad-message"
    assert files_of(silo) == before


@pytest.mark.parametrize("change", ["twice", "two", "none", "long", "negative", "empty", "huge", "more"])
def test_what_is_not_three_files_is_no_bundle(silo, change):
    request, payload = bundle_of(PLAN.study)
    tree = json.loads(request.model_dump_json())
    files = tree["files"]
    if change == "twice":
        files[1]["name"] = files[0]["name"]
    elif change == "more":
        files.append(files[0])
    elif change in ("two", "none"):
        tree["files"] = files[: 2 if change == "two" else 0]
    else:
        sizes = {"long": (1 << 29) + 1, "negative": -1, "empty": 0, "huge": 10**30}
        files[0]["size"] = sizes[change]
    header, _ = said(silo, json.dumps(tree), payload)
    assert parse_response(header).code == "bad-message"
    assert kept_models(folder_of(silo)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": b"\x80\x04\x95pickle"},
        {"weights": (1 << 60).to_bytes(8, "little") + b"{}"},
        {"weights": b"#!/bin/sh\nrm -rf /\n"},
        {"description": b"[1]"},
        {"description": b'{"format": 2}'},
        {"description": b"[" * 100_000},
        {"description": b"\xff"},
        {"description": b'{"format": 1, "target": {"classes": ["no", "\\u001b]0;yes\\u0007"]}}'},
        {"description": b'{"format": 1, "columns": {"age\\u009b2J": {}}}'},
        {"card": b"# \x1b[2Jall agreed\n"},
        {"card": b"\xff\xfe"},
    ],
    ids=range(11),
)
def test_files_that_are_not_what_they_are_called_are_refused(silo, changed):
    assert "is not what its name says" in refused(silo, "model", *bundle_of(PLAN.study, **changed))


def test_too_large_is_refused_and_so_is_more_than_a_silo_keeps(silo, monkeypatch):
    large = b'{"format": 1, "note": "' + b"x" * models.MOST_TEXT + b'"}'
    assert str(models.MOST_TEXT) in refused(silo, "model", *bundle_of(PLAN.study, description=large))
    monkeypatch.setattr(models, "MOST_KEPT", 50)
    (folder_of(silo) / "models").mkdir(mode=0o700, exist_ok=True)
    assert "at most 50 bytes" in refused(silo, "full", *bundle_of(PLAN.study))


def test_only_studies_that_the_silo_has_answered_and_ended_have_a_model(silo):
    refused(silo, "unknown-study", *bundle_of("ab" * 32))
    other = plan_of({"name": "mb-sgd"}, name="open")
    silo.ask(Propose(plan=other))
    refused(silo, "unknown-study", *bundle_of(other.study))
    specs, payload = broadcast_of(other)
    silo.ask(Answer(study=other.study, round=0, arrays=specs), payload)
    refused(silo, "open", *bundle_of(other.study))


def test_nobody_but_the_proposer_of_the_study_hands_over_its_model(silo):
    request, payload = bundle_of(PLAN.study)
    unsigned = silo.service.handle(*unframed(frame(request, payload)))
    assert b"unsigned" in unsigned
    other = Proposer("other", Signer(hashlib.sha256(b"other").digest()))
    for proposer, code in ((other, b"proposer"), (Proposer("tester", other.signer), b"signature")):
        raw = proposer.request(request, payload, silo="clinic", ledger=silo.service._ledger.identity)
        assert b'\\"code\\":\\"' + code in silo.service.handle(*unframed(raw))
    # A payload that somebody has changed on its way.
    raw = PROPOSER.request(request, payload, silo="clinic", ledger=silo.service._ledger.identity)
    header, body = unframed(raw)
    assert b"signature" in silo.service.handle(header, body[:-1] + b"!")
    assert kept_models(folder_of(silo)) == []


def test_an_expired_policy_still_takes_the_model_of_a_study_that_it_paid_for(silo):
    path = folder_of(silo) / "policy.toml"
    path.write_text("expires = 2020-01-01\n" + path.read_text())
    assert load_policy(path).expires is not None
    assert silo.ask(*bundle_of(PLAN.study))[0].type == "kept"


def test_a_daemon_that_was_killed_while_it_wrote_leaves_no_model_and_takes_it_again(silo, monkeypatch):
    written = []

    def dies(path, content):
        if written:
            raise OSError("no power")
        written.append(path)
        real(path, content)

    real = models.write_secret
    monkeypatch.setattr(models, "write_secret", dies)
    with pytest.raises(RefusalError, match="present state"):
        silo.ask(*bundle_of(PLAN.study))
    assert written[0].exists()
    assert kept_models(folder_of(silo)) == []
    monkeypatch.undo()
    silo.ask(*bundle_of(PLAN.study))
    assert kept_models(folder_of(silo))[0]["intact"]
    assert not written[0].exists()


def test_models_are_listed_and_found_by_name(silo):
    folder = folder_of(silo)
    runner = CliRunner(env={"COLUMNS": "80"})
    assert "No models yet" in runner.invoke(app, ["silo", "models", str(folder)]).output
    silo.ask(*bundle_of(PLAN.study))
    [row] = json.loads(runner.invoke(app, ["silo", "models", str(folder), "--json"]).output)
    known = {"name", "plan", "study", "proposer", "epsilon", "delta", "received", "intact", "personal", "path"}
    assert set(row) == known
    assert row["personal"] is False
    shown = runner.invoke(app, ["silo", "models", str(folder)]).output
    assert all(text in shown for text in (f"{row['epsilon']:.4g}", row["path"], row["received"], "tester"))
    for words in ("ward-7", row["name"], PLAN.study[:10]):
        assert str(find_model(folder, words)) == row["path"]
    for words in ("ward", "..", "../../etc", ""):
        with pytest.raises(TacitError, match=f"it has: {row['name']}"):
            find_model(folder, words)
    (folder / "models" / row["name"]).rename(folder / "models" / "copy")
    silo.ask(*bundle_of(PLAN.study))
    with pytest.raises(TacitError, match="give one of these names"):
        find_model(folder, "ward-7")


def test_files_are_called_as_those_of_a_bundle_are():
    from tacit.models.bundle import CARD, DESCRIPTION, WEIGHTS

    request, _ = bundle_of(PLAN.study)
    assert [file.name for file in request.files] == [WEIGHTS, DESCRIPTION, CARD]
    assert Bundle.model_validate_json(request.model_dump_json()) == request
