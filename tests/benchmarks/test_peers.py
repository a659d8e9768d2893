"""What the comparison with peers decides by itself: ties, settings, and what its tables read off a run."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.peers import missed
from benchmarks.peers.accountants import Found
from benchmarks.peers.errors import page as errors
from benchmarks.peers.errors.choose import CLIPS, STEPS, search
from benchmarks.peers.errors.page import at, final
from benchmarks.peers.errors.recipes import DOCUMENTED, certified, documented
from benchmarks.peers.kept import Kept
from benchmarks.peers.page import page, stored
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


def test_the_pages_say_what_was_measured_and_nothing_else():
    results = stored(missed.FOLDER / "peers.json")
    assert (missed.FOLDER / "peers.md").read_text(encoding="utf-8") == page(results)
    text = (missed.FOLDER / "README.md").read_text(encoding="utf-8")
    assert missed.filled(text, results) == text


def test_bars_that_are_missed_are_named_with_their_numbers():
    results = stored(missed.FOLDER / "peers.json")
    results["compiling"]["first"] |= {"mb-sgd": 7.125, "ce-psgm": 1.0, "ce-psgm-fg": 1.0}
    results["compiling"]["slowest"] = 7.125
    told = missed.paragraphs(results)
    assert "above the bar: `mb-sgd` 7.12 s (" in told
    assert "`ce-psgm`" not in told
    results["compiling"]["slowest"] = 1.0
    assert "Compilation" not in missed.paragraphs(results)
    results["compiling"]["slowest_again"] = 6.0
    with pytest.raises(SystemExit, match="cache on disk"):
        missed.paragraphs(results)


def test_documented_settings_keep_batch_and_passes_and_cost_what_all_cost():
    records = (212, 40)
    recipe = documented("opacus-documented", records, hidden=False)
    assert (recipe.batch, recipe.rounds, recipe.step, recipe.clip, recipe.server) == ((64, 40), 33, 0.1, 1.0, "sgd")
    assert all(0.99 < epsilon <= 1.0 for epsilon in certified(recipe, records))
    network = documented("jax-privacy-documented", (1234, 1234), hidden=True)
    assert (network.batch, network.rounds, network.server) == ((256, 256), 103, "momentum")
    assert network.step * network.clip == pytest.approx(0.1)


def test_documented_lines_are_told_with_their_source_and_a_star_where_they_were_timed_beside_other_work():
    results = stored(missed.FOLDER / "peers.json")
    task = results["errors"][0]
    without = {name: line for name, line in task["lines"].items() if name not in DOCUMENTED}
    assert "As documented" not in errors.section([{**task, "lines": without}])
    line = {**without["opacus"], "title": "Opacus, as documented", "loaded": True}
    told = errors.section([{**task, "lines": {**without, "opacus-documented": line}}])
    assert "`examples/mnist.py` of pytorch/opacus" in told
    assert "A star marks seconds" in told
    assert "torch.func and Flower publish no settings" in told
    [row] = [row for row in told.splitlines() if row.startswith("| Opacus, as documented | 0.")]
    assert row.count("*") == 2
