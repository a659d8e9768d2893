"""A long audit goes on where it was stopped, and never mixes what two versions of the code have found."""

import json

import pytest

from experiments.audit import journal as journal_module
from experiments.audit import suite
from experiments.audit.journal import Journal, Part, code
from tacit.audit.mechanism import AuditError


def double(number):
    return 2 * number


def parts(*numbers):
    return [Part(f"part {n}", float(n), double, (n,)) for n in numbers]


def test_what_was_found_is_not_made_again(tmp_path):
    file = tmp_path / "journal.jsonl"
    said = []
    Journal(file, trials=10, seed=0).fill(parts(1, 2), jobs=1, say=said.append)
    assert said[0].startswith("1 of 2: part 1; about")
    again = Journal(file, trials=10, seed=0)
    again.fill([Part("part 1", 1.0, pytest.fail, ("made again",)), *parts(2, 3)], jobs=1, say=said.append)
    assert again.rows == {"part 1": 2, "part 2": 4, "part 3": 6}
    assert len(said) == 3


def test_a_line_that_was_cut_short_is_made_again(tmp_path):
    file = tmp_path / "journal.jsonl"
    Journal(file, trials=10, seed=0).fill(parts(1, 2), jobs=1, say=str)
    file.write_text(file.read_text()[:-4])
    again = Journal(file, trials=10, seed=0)
    assert again.rows == {"part 1": 2}
    assert again.seconds == {"part 1": 0.0}


@pytest.mark.parametrize("changed", ["version", "commit", "source", "trials"])
def test_other_code_or_another_audit_is_refused(tmp_path, changed):
    file = tmp_path / "journal.jsonl"
    Journal(file, trials=10, seed=0)
    head = json.loads(file.read_text())
    assert head == {**code(), "trials": 10, "seed": 0}
    file.write_text(json.dumps({**head, changed: "other"}) + "\n")
    with pytest.raises(AuditError, match=f"its {changed} differ"):
        Journal(file, trials=10, seed=0)


def test_processes_of_their_own_find_the_same_and_are_replaced_when_they_have_done_their_share(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "_PARTS_OF_A_PROCESS", 1)
    journal = Journal(tmp_path / "journal.jsonl", trials=10, seed=0)
    journal.fill(parts(1, 2, 3), jobs=2, say=str)
    assert journal.rows == {"part 1": 2, "part 2": 4, "part 3": 6}


def test_rows_of_the_suite_come_out_of_its_journal(tmp_path, monkeypatch):
    file = tmp_path / "journal.jsonl"
    asked = {"trials": 1000, "seed": 0, "say": str, "algorithms": ("prox-sgd",)}
    rows, refused = suite.mechanisms(**asked, journal=Journal(file, trials=1000, seed=0))
    labels = ["prox-sgd, one pass", "prox-sgd, one pass, shuffled sum", "prox-sgd, one pass, pairwise"]
    assert [row["label"] for row in rows] == labels
    assert {row["path"] for row in rows} == {"door"}
    assert "prox-sgd, schedule" in refused
    monkeypatch.setattr(suite, "audit_subject", lambda *a, **k: pytest.fail("made again"))
    assert suite.mechanisms(**asked, journal=Journal(file, trials=1000, seed=0)) == (rows, refused)
