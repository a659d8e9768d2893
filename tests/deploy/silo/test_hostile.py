"""A hostile server gets a typed refusal or a paid release, whatever it sends; and nothing that depends on a record."""

import contextlib
import io
import json
import socket
import struct
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.deploy.wire import (
    MOST_FRAME,
    Hello,
    Plan,
    Propose,
    RefusalError,
    frame,
    parse_request,
    parse_response,
    read_arrays,
    read_frame,
    write_arrays,
)
from tests.deploy.silo.consortium import PROPOSER, plan_of, said
from tests.deploy.silo.hostile import CODES, Siege, besiege


def test_a_siege(tmp_path):
    siege = besiege(tmp_path, 700, seed=6)
    # The attack reached every line of defence, or it would show little.
    reached = {"bad-frame", "bad-message", "bad-plan", "not-allowed", "over-budget", "busy", "round", "shape"}
    reached |= {"answered", "finished", "unknown-study", "version", "consent", "message", "receipt", "standing"}
    reached |= {"proposer"}
    assert reached <= set(siege.codes), reached - set(siege.codes)
    assert siege.codes["message"] >= 20


@pytest.fixture(scope="module")
def siege(tmp_path_factory):
    made = Siege(tmp_path_factory.mktemp("siege"))
    yield made
    made.check_books()
    made.close()


QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(raw=st.binary(max_size=300))
def test_any_bytes(siege, raw):
    siege.send(raw)


@QUICK
@given(header=st.binary(max_size=200), payload=st.binary(max_size=20))
def test_any_framed_bytes(siege, header, payload):
    siege.send(frame(header, payload))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TERMS = sorted(plan_of({"name": "mb-sgd"}).model_dump())


@QUICK
@given(field=st.sampled_from(TERMS), value=JSON)
def test_any_value_in_any_field_of_a_plan(siege, field, value):
    plan = plan_of({"name": "mb-sgd"}, epsilon=39.0).model_dump(mode="json")
    siege.send(frame(json.dumps({"type": "propose", "plan": {**plan, field: value}})))


@QUICK
@given(name=st.sampled_from(["clip_norm", "step_size", "batch_size", "sampling", "output", "num_rounds"]), value=JSON)
def test_any_value_of_a_parameter(siege, name, value):
    plan = plan_of({"name": "mb-sgd"}, epsilon=39.0).model_dump(mode="json")
    plan["algorithm"][name] = value
    siege.send(frame(json.dumps({"type": "propose", "plan": plan})))


def test_a_thousand_plans_at_once(siege):
    before = dict(siege.codes)
    for number in range(1000):
        plan = plan_of({"name": "mb-sgd"}, nonce=f"{number:032x}", epsilon=0.1)
        siege.send(frame(Propose(plan=plan).model_dump_json()))
    refused = siege.codes["busy"] - before.get("busy", 0)
    assert refused >= 1000 - siege.stewards[0].policy.allow.max_open
    assert siege.check_books() < 1.0


@given(length=st.integers(0, 2**32 - 1), head=st.integers(0, 2**32 - 1), rest=st.binary(max_size=64))
def test_a_frame_is_read_whole_or_refused_before_it_is_read(length, head, rest):
    asked = []

    def read(size):
        asked.append(size)
        return stream.read(size)

    stream = io.BytesIO(struct.pack(">II", length, head) + rest)
    try:
        found = read_frame(read)
    except RefusalError:
        assert max(asked) <= MOST_FRAME
    else:
        assert found is not None
        assert len(found[0]) == head
        assert 4 + len(found[0]) + len(found[1]) == length


def test_arrays_survive_the_journey():
    arrays = [np.float32([[1.5, np.nan]]), np.int32(7), np.zeros((0, 3), np.float32)]
    specs, payload = write_arrays(arrays)
    for one, other in zip(read_arrays(specs, payload), arrays, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    with pytest.raises(RefusalError):
        read_arrays(specs, payload[:-1])


def test_a_plan_is_the_same_study_after_the_journey():
    plan = plan_of({"name": "mb-sgd", "step_size": 0.1}, {"regulariser": {"kind": "l2", "weight": 1}})
    again = parse_request(Propose(plan=plan).model_dump_json().encode()).plan
    assert isinstance(again, Plan)
    assert again.study == plan.study
    assert plan.model_copy(update={"epsilon": 0.5}).study != plan.study


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03",
        frame(b"{}")[:-1],
        frame(b"{}", b"x" * 9)[:9],
        b"GET / HTTP",
    ],
)
def test_the_door_survives_broken_frames(daemon, raw):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(daemon.home.socket))
        line.settimeout(20)
        line.sendall(raw)
        line.shutdown(socket.SHUT_WR)
        with line.makefile("rb") as stream:
            found = stream.read()
    if found:
        header, _ = read_frame(io.BytesIO(found).read)
        assert parse_response(header).code in CODES
    daemon.ready()


@pytest.mark.parametrize("sent", [b"", b"\0\0\1\0", frame(b"{}")])
def test_the_door_survives_a_crowd(daemon, sent):
    with contextlib.ExitStack() as anonymity:
        for _ in range(40):
            line = anonymity.enter_context(socket.socket(socket.AF_UNIX))
            # Waits while the door's queue is full.
            line.connect(str(daemon.home.socket))
            line.sendall(sent)
        begun = time.monotonic()
        client = daemon.client(patience=20.0)
        assert parse_response(said(client, Hello())[0]).type == "welcome"
        assert time.monotonic() - begun < 10.0
    client.close()


def test_a_courier_that_repeats_a_request_on_many_connections_keeps_nobody_out(daemon):
    """It holds frames that the proposer has signed, and nothing else."""
    old = PROPOSER.request(Hello(), silo=daemon.folder.name)
    with contextlib.ExitStack() as crowd:
        for _ in range(40):
            line = crowd.enter_context(socket.socket(socket.AF_UNIX))
            line.settimeout(20)
            line.connect(str(daemon.home.socket))
            line.sendall(old)
            assert line.recv(1)
        client = daemon.client(patience=20.0)
        begun = time.monotonic()
        assert parse_response(said(client, Hello())[0]).type == "welcome"
        assert time.monotonic() - begun < 10.0
    client.close()
