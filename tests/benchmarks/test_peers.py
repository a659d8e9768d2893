"""What the comparison with peers decides by itself: ties, settings, and what its tables read off a run."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.peers.accountants import Found
from benchmarks.peers.errors.choose import CLIPS, STEPS, search
from benchmarks.peers.errors.page import at, final
from benchmarks.peers.kept import Kept
from benchmarks.peers.rounds import Measured
from benchmarks.peers.works import CLEAR, Work, data, margins, start

CNN = Work("cnn", (), 2, 4, 6, 1.0)
MLP = Work("mlp", (5, 8, 2), 2, 30, 40, 1.0)


@pytest.mark.parametrize("work", [CNN, MLP], ids=lambda work: work.name)
def test_compared_records_have_no_ties_and_the_others_are_as_drawn(work):
    x, _ = data(work)
    other, _ = data(dataclasses.replace(work, batch=1))
    assert margins(work, x[:, : work.batch].reshape(-1, *work.features)).min() >= CLEAR
    np.testing.assert_array_equal(x[:, work.batch :], other[:, work.batch :])


def test_a_record_at_a_kink_is_near_and_drawn_again(monkeypatch):
    """A unit is moved onto the kink of the first record, which must then be another one."""
    x, _ = data(MLP)
    layers = start(MLP)
    first = layers["layer_1"]
    first["b"][3] = -np.float64(x[0, 0]) @ np.float64(first["w"][:, 3])
    monkeypatch.setattr("benchmarks.peers.works.start", lambda work: layers)
    assert margins(MLP, x[0])[0] < CLEAR
    again, _ = data(MLP)
    changed = np.argwhere((again != x).any(axis=-1))
    assert changed[0].tolist() == [0, 0]
    assert margins(MLP, again[:, : MLP.batch].reshape(-1, 5)).min() >= CLEAR


def test_two_equal_pixels_of_a_pool_are_a_tie_and_two_below_zero_are_not(monkeypatch):
    """An image of one colour has the same output everywhere, so that every pool above zero is a tie."""
    layers = start(CNN)
    flat = np.ones((1, 32, 32, 3), np.float32)
    monkeypatch.setattr("benchmarks.peers.works.start", lambda work: layers)
    assert margins(CNN, flat)[0] < 1e-12
    for name in ("conv_1", "conv_2"):
        layers[name]["b"][:] = -1e3
    assert margins(CNN, flat)[0] > CLEAR


def bowl(clip, step):
    """Errors with one least place."""
    return lambda places: [float(abs(a - clip) + abs(b - step)) for a, b in places]


def test_a_grid_with_its_best_inside_does_not_grow():
    assert search(bowl(1, 2), growth=3) == ((1, 2), 0.0, CLIPS * STEPS, False)


def test_a_grid_grows_towards_a_best_beyond_its_edge():
    found = search(bowl(-2, 5), growth=3)
    assert (found.place, found.edge) == ((-2, 5), False)


def test_a_best_that_grows_away_is_marked():
    found = search(bowl(40, 1), growth=3)
    assert (found.place, found.edge) == ((CLIPS + 2, 1), True)
    assert found.tried == (CLIPS + 3) * STEPS


def test_errors_are_read_at_the_last_round_that_has_ended():
    runs = [
        {"seconds": [1.0, 2.0, 3.0], "errors": [0.5, 0.4, 0.1]},
        {"seconds": [1.5, 2.5, 3.5], "errors": [0.3, 0.2, 0.3]},
    ]
    line = {"runs": runs}
    assert at(line, 1.2) is None
    assert at(line, 2.0) == pytest.approx((0.4 + 0.3) / 2)
    assert at(line, 60.0) == pytest.approx(0.2)
    assert final(line) == (pytest.approx(0.2), pytest.approx(np.std([0.1, 0.3], ddof=1)))


def test_a_comparison_that_was_stopped_goes_on_with_what_it_has(tmp_path):
    path, options = tmp_path / "parts.json", {"quick": False, "times": 3}
    work = {"work": "w", "peers": {"tacit": Measured("tacit", [0.5, 0.25], 1.5, 80.0, 1e-7)}}
    found = [Found("Tacit", "replace-one", [0.1], 1.25, 1.0)]
    kept = Kept(path, options)
    assert (kept.get("w", lambda: work), kept.get("q", lambda: found)) == (work, found)
    again = Kept(path, options)
    assert (again.get("w", pytest.fail), again.get("q", pytest.fail)) == (work, found)
    assert Kept(path, {**options, "times": 4}).get("w", lambda: "anew") == "anew"
    Kept(path, options).forget()
    assert not path.exists()


def test_the_memory_of_a_worker_is_its_own_and_not_what_its_parent_held():
    """A parent of 400 MB starts a small process."""
    held = np.ones(50_000_000)
    program = "from benchmarks.peers.worker import peak_megabytes; print(peak_megabytes())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 20 < float(said) < held.nbytes / 2**20
