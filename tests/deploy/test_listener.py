"""Sockets before crowds: whoever is slow, idle or unknown keeps nobody else out."""

import contextlib
import logging
import socket
import threading
import time
import tracemalloc

import pytest

from tacit.deploy import listener
from tacit.deploy.client import BusyError, Connection
from tacit.deploy.listener import Listener
from tacit.deploy.wire import frame, read_frame
from tests.deploy.silo.consortium import wait_for

MOST = 4
KNOWN = frame(b"known")


class Door:
    """A listener on a port, which knows frames that say so; ``slow`` frames are at work until ``done``."""

    def __init__(self, **changes):
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port, self.done, self.at_work = listening.getsockname()[1], threading.Event(), threading.Semaphore(0)
        terms = {"knows": lambda header, _: header != b"stranger", "most": MOST, "log": logging.getLogger("tacit.test")}
        self.listener = Listener(listening, self._handle, **{**terms, **changes})
        threading.Thread(target=self.listener.serve, daemon=True).start()

    def _handle(self, header, payload):
        if header == b"slow":
            self.at_work.release()
            self.done.wait(20.0)
        return frame(header, payload)

    def line(self, source="127.0.0.1"):
        return socket.create_connection(("127.0.0.1", self.port), 10.0, (source, 0))


@pytest.fixture
def door():
    found = Door()
    yield found
    found.done.set()
    found.listener.close()


def said(line, raw=KNOWN):
    line.sendall(raw)
    with line.makefile("rb") as stream:
        return read_frame(stream.read)


def is_cut(line, seconds=5.0):
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


class Talker(Connection):
    def __init__(self, port, patience):
        super().__init__(patience)
        self.port = port

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), 10.0)


@pytest.mark.parametrize("sent", [b"", KNOWN[:6], frame(b"stranger")])
def test_a_crowd_of_strangers_keeps_neither_callers_nor_new_ones_out(door, sent):
    with contextlib.ExitStack() as crowd:
        caller = crowd.enter_context(door.line())
        assert said(caller) == (b"known", b"")
        lines = [crowd.enter_context(door.line()) for _ in range(20 * MOST)]
        for line in lines:
            with contextlib.suppress(OSError):
                line.sendall(sent)
        begun = time.monotonic()
        assert said(crowd.enter_context(door.line())) == (b"known", b"")
        assert said(caller) == (b"known", b"")
        assert time.monotonic() - begun < 2.0
        assert len(door.listener._strangers) <= MOST


def test_a_crowd_from_one_address_pushes_out_its_own(door):
    with contextlib.ExitStack() as crowd:
        lonely = crowd.enter_context(door.line("127.0.0.2"))
        for _ in range(20 * MOST):
            last = crowd.enter_context(door.line("127.0.0.3"))
        # Once the last one is heard, all of them have come in.
        assert said(last) == (b"known", b"")
        assert said(lonely) == (b"known", b"")


def test_the_caller_that_was_idle_for_longest_makes_room(door):
    with contextlib.ExitStack() as all_of_them:
        lines = [all_of_them.enter_context(door.line()) for _ in range(MOST)]
        for line in lines:
            assert said(line) == (b"known", b"")
        assert said(lines[0]) == (b"known", b"")
        assert said(all_of_them.enter_context(door.line())) == (b"known", b"")
        assert is_cut(lines[1])
        assert said(lines[0]) == (b"known", b"")


def test_if_all_callers_are_at_work_one_more_is_told_busy_at_once_and_comes_back_later(door):
    with contextlib.ExitStack() as all_of_them:
        for _ in range(MOST):
            all_of_them.enter_context(door.line()).sendall(frame(b"slow"))
            assert door.at_work.acquire(timeout=5.0)
        begun = time.monotonic()
        assert b'"code":"busy"' in said(all_of_them.enter_context(door.line()))[0]
        with pytest.raises(BusyError):
            Talker(door.port, 0.0).exchange(KNOWN)
        assert time.monotonic() - begun < 1.0
        threading.Timer(0.5, door.done.set).start()
        patient = Talker(door.port, 20.0)
        assert patient.exchange(KNOWN) == (b"known", b"")
        patient.close()


def test_what_is_half_sent_by_a_caller_counts_as_work(door):
    with contextlib.ExitStack() as all_of_them:
        lines = [all_of_them.enter_context(door.line()) for _ in range(MOST)]
        for line in lines:
            assert said(line) == (b"known", b"")
        lines[0].sendall(KNOWN[:6])
        time.sleep(0.2)
        assert said(all_of_them.enter_context(door.line())) == (b"known", b"")
        assert is_cut(lines[1])
        assert said(lines[0], KNOWN[6:]) == (b"known", b"")


def test_a_strangers_first_frame_is_small():
    door = Door(first=1000)
    with door.line() as line:
        assert b"bad-frame" in said(line, (2000).to_bytes(4, "big") + (10).to_bytes(4, "big"))[0]
    with door.line() as line:
        assert said(line) == (b"known", b"")
        assert said(line, frame(b"known", bytes(2000))) == (b"known", bytes(2000))
    door.listener.close()


def test_all_strangers_together_hold_so_much_and_the_oldest_make_room():
    door = Door(held=250_000)
    begun = frame(b"known", bytes(1_000_000))[:100_000]
    with contextlib.ExitStack() as crowd:
        caller = crowd.enter_context(door.line())
        assert said(caller) == (b"known", b"")
        # What is known may be large, and counts for nothing here.
        caller.sendall(begun)
        idle, *lines = [crowd.enter_context(door.line()) for _ in range(MOST)]
        for line in lines:
            line.sendall(begun)
            assert wait_for(lambda: sum(own.held for own in door.listener._strangers) in (100_000, 200_000), 10.0)
        held = [own.held for own in door.listener._strangers]
        assert sum(held) <= 250_000
        assert [is_cut(line, 1.0) for line in (idle, *lines)] == [False, True, False, False]
        newcomer = crowd.enter_context(door.line())
        assert said(newcomer, frame(b"known", bytes(240_000))) == (b"known", bytes(240_000))
        caller.sendall(frame(b"known", bytes(1_000_000))[100_000:])
        with caller.makefile("rb") as stream:
            assert read_frame(stream.read) == (b"known", bytes(1_000_000))
    door.listener.close()


def test_all_callers_together_hold_so_much_and_the_next_one_is_busy(door, monkeypatch):
    monkeypatch.setattr(listener, "MOST_OF_CALLERS", 250_000)
    raw = frame(b"known", bytes(1_000_000))
    with contextlib.ExitStack() as crowd:
        lines = [crowd.enter_context(door.line()) for _ in range(3)]
        assert [said(line)[0] for line in lines] == [b"known"] * 3
        for line in lines[:2]:
            line.sendall(raw[:100_000])
        assert wait_for(lambda: sum(own.held for own in door.listener._callers) == 200_000, 10.0)
        assert b"busy" in said(lines[2], raw[:100_000])[0]
        assert is_cut(lines[2])
        # There is room again once one of them has hung up.
        lines[0].close()
        assert wait_for(lambda: sum(own.held for own in door.listener._callers) == 100_000, 10.0)
        assert said(crowd.enter_context(door.line()), frame(b"known", bytes(100_000))) == (b"known", bytes(100_000))


def test_no_thread_is_left_of_those_that_were_cut_off(door):
    before = threading.active_count()
    with contextlib.ExitStack() as crowd:
        for _ in range(50 * MOST):
            crowd.enter_context(door.line())
        until = time.monotonic() + 5.0
        while threading.active_count() > before + MOST and time.monotonic() < until:
            time.sleep(0.02)
        assert threading.active_count() <= before + MOST


SIZE = 4 << 20


def test_nothing_of_a_frame_that_was_answered_is_kept_while_the_next_one_is_waited_for():
    """Idle lines, of strangers and of callers, hold no bytes of what they have said before."""
    door = Door(held=2 * SIZE)
    tracemalloc.start()
    try:
        for header in (b"stranger", b"known"):
            with contextlib.ExitStack() as crowd:
                for _ in range(MOST):
                    assert said(crowd.enter_context(door.line()), frame(header, bytes(SIZE)))[1] == bytes(SIZE)
                assert wait_for(lambda: tracemalloc.get_traced_memory()[0] < SIZE, 5.0)
    finally:
        tracemalloc.stop()
        door.listener.close()


def test_strangers_that_were_cut_off_while_they_are_looked_at_still_count():
    """Whoever repeats a signed request waits like its sender. Cut off meanwhile, its bytes are still there."""
    door = Door(held=2 * SIZE + 1000, knows=lambda header, _: header == b"known")
    slow = frame(b"slow", bytes(SIZE))
    with contextlib.ExitStack() as crowd:
        for _ in range(2):
            crowd.enter_context(door.line()).sendall(slow)
            assert door.at_work.acquire(timeout=5.0)
        for _ in range(2 * MOST):  # these push the two out
            crowd.enter_context(door.line())
        for _ in range(3):
            assert b'"code":"busy"' in said(crowd.enter_context(door.line()), slow)[0]
        assert not door.at_work.acquire(blocking=False)
        assert said(crowd.enter_context(door.line())) == (b"known", b"")
        door.done.set()
        assert wait_for(lambda: not door.listener._looked_at, 5.0)
        assert said(crowd.enter_context(door.line()), slow)[0] == b"slow"
    door.listener.close()


def test_no_more_strangers_are_looked_at_at_once_than_there_may_be():
    door = Door(knows=lambda header, _: header == b"known")
    with contextlib.ExitStack() as crowd:
        for _ in range(MOST):
            crowd.enter_context(door.line()).sendall(frame(b"slow"))
            assert door.at_work.acquire(timeout=5.0)
        assert b'"code":"busy"' in said(crowd.enter_context(door.line()), frame(b"slow"))[0]
        assert said(crowd.enter_context(door.line())) == (b"known", b"")
        door.done.set()
    door.listener.close()


def test_what_makes_a_stranger_a_caller_counts_with_what_callers_hold(door, monkeypatch):
    monkeypatch.setattr(listener, "MOST_OF_CALLERS", 2 * SIZE)
    slow = frame(b"slow", bytes(SIZE - 100))
    with contextlib.ExitStack() as crowd:
        for _ in range(2):
            crowd.enter_context(door.line()).sendall(slow)
            assert door.at_work.acquire(timeout=5.0)
        assert b'"code":"busy"' in said(crowd.enter_context(door.line()), slow)[0]
        assert said(crowd.enter_context(door.line())) == (b"known", b"")
