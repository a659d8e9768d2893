"""A silo's own model at a real daemon: made of what was released, kept through restarts, never sent to anyone."""

import numpy as np
from safetensors.numpy import load
from typer.testing import CliRunner

from tacit.cli import app
from tacit.deploy.silo.models import PERSONAL, find_model, kept_models
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Finish, Propose, Status, read_arrays, write_arrays
from tacit.silo.door import Door, no_noise
from tests.deploy.silo.consortium import LocalClient, bundle_of, make_home, plan_of, records_of

STEP, STRENGTH, ROUNDS = 0.5, 0.8, 4
PLAN = plan_of({"name": "mr-mtl", "strength": STRENGTH, "step_size": STEP, "num_rounds": ROUNDS}, name="ward-7")
RECORDS = records_of(0, 40)
RNG = np.random.default_rng(3)
POINTS = [[RNG.normal(size=shape).astype(np.float32) for shape in ((1,), (5, 1))] for _ in range(ROUNDS)]


def answered(folder, *, restart=True):
    """A finished study at a silo whose daemon starts anew before every round: its folder and its messages."""
    home, policy = make_home(folder, RECORDS)
    service, messages = SiloService(policy, RECORDS, home), []
    client = LocalClient(service)
    client.ask(Propose(plan=PLAN))
    for number, point in enumerate(POINTS):
        specs, payload = write_arrays(point)
        reply, body = client.ask(Answer(study=PLAN.study, round=number, arrays=specs), payload)
        messages.append(read_arrays(reply.arrays, body))
        if restart:
            service.close()
            service = SiloService(policy, RECORDS, home)
            client = LocalClient(service)
    client.ask(Finish(study=PLAN.study))
    return client, home.folder, messages


def from_messages(messages):
    """The silo's own model as anybody could make it who has seen messages and broadcasts."""
    own = [np.asarray(leaf, np.float64) for leaf in POINTS[0]]
    for mean, message in zip(POINTS, messages, strict=True):
        own = [w - STEP * (g + STRENGTH * (w - m)) for w, g, m in zip(own, message, mean, strict=True)]
    return own


def kept(folder):
    [path] = (folder / "models" / ".own").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    found = load(path.read_bytes())
    return [found["linear.b"][0], found["linear.w"][0]]


def apart(folder, messages):
    pairs = zip(kept(folder), from_messages(messages), strict=True)
    return max(float(np.abs(own - made).max()) for own, made in pairs)


def test_it_follows_from_messages_and_broadcasts_alone_through_restarts(tmp_path):
    client, folder, messages = answered(tmp_path / "clinic")
    assert apart(folder, messages) < 1e-5
    assert max(float(np.abs(g).max()) for m in messages for g in m) > 0.01
    # A second end of the study finds nothing to keep, and changes nothing.
    before = kept(folder)
    client.ask(Finish(study=PLAN.study))
    for own, again in zip(before, kept(folder), strict=True):
        np.testing.assert_array_equal(own, again)
    client.service.close()


def test_a_model_of_what_had_no_noise_yet_is_found(tmp_path, monkeypatch):
    """A planted bug: the check above sees it."""
    right = Door.answer

    def leaking(self, broadcast, memory, *, batches, sampler, past):
        loud = right(self, broadcast, memory, batches=batches, sampler=sampler, past=past)
        return loud._replace(memory=right(self, broadcast, memory, batches=batches, sampler=no_noise, past=past).memory)

    monkeypatch.setattr(Door, "answer", leaking)
    client, folder, messages = answered(tmp_path / "clinic", restart=False)
    assert apart(folder, messages) > 0.01
    client.service.close()


def test_a_study_ends_where_there_is_no_room_for_the_silos_own_model(tmp_path, caplog):
    home, policy = make_home(tmp_path / "full", RECORDS)
    service = SiloService(policy, RECORDS, home)
    client = LocalClient(service)
    client.ask(Propose(plan=PLAN))
    specs, payload = write_arrays(POINTS[0])
    client.ask(Answer(study=PLAN.study, round=0, arrays=specs), payload)
    (home.folder / "models").mkdir(mode=0o700)
    with (home.folder / "models" / "another").open("wb") as file:
        file.truncate(1 << 30)
    receipt, _ = client.ask(Finish(study=PLAN.study))
    assert receipt.answers == 1
    assert client.ask(Status(study=PLAN.study))[0].state == "finished"
    assert "the silo's own model" in caplog.text
    service.close()


def test_it_is_beside_the_model_for_everybody_else(tmp_path):
    client, folder, _ = answered(tmp_path / "clinic", restart=False)
    client.ask(*bundle_of(PLAN.study))
    [row] = kept_models(folder)
    assert row["personal"]
    place = find_model(folder, "ward-7")
    own = [path.read_bytes() for path in (folder / "models" / ".own").iterdir()]
    assert [(place / PERSONAL).read_bytes()] == own
    assert "own" in CliRunner().invoke(app, ["silo", "models", str(folder)]).stdout
    # What was damaged is not used, and comes back with the bundle.
    (place / PERSONAL).write_bytes(b"other")
    assert not kept_models(folder)[0]["intact"]
    client.ask(*bundle_of(PLAN.study))
    assert [(place / PERSONAL).read_bytes()] == own
    client.service.close()


def test_a_study_and_its_own_model_are_their_proposers_alone(tmp_path):
    """Another proposer's question that names the study counts the shared model, as if there were no other."""
    client, _, _ = answered(tmp_path / "clinic", restart=False)
    service, asked = client.service, {"own": PLAN.consortium.hex()}
    named = {"name": "validation", "num_rounds": 1, "step_size": None, "clip_norm": None, "asked": asked}
    question = plan_of(named, nonce="ab")
    assert service._own_model(service._ledger, question) is not None
    service._asking = "somebody else"
    assert service._own_model(service._ledger, question) is None
