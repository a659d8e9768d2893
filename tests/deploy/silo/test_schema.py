"""One meaning of the data: silos whose schemas differ are refused, in words, and nothing is reserved anywhere."""

import hashlib
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tomli_w

from tacit.data.csv_silos import silo_records
from tacit.data.schema import ENCODING, schema_from, schema_text
from tacit.deploy.descriptions import differences
from tacit.deploy.permissions import write_secret
from tacit.deploy.server.study import lead
from tacit.deploy.silo.policy import PolicyError, load_description, load_policy, load_records
from tacit.deploy.silo.service import SiloService, home_of
from tacit.deploy.wire import MOST_DESCRIPTION, Consent, Description, Hello, Propose, RefusalError, read_frame
from tacit.errors import TacitError
from tests.deploy.silo.consortium import LocalClient, led_by, make_home, plan_of, policy_tree, records_of, silo_key

NUMBER = {"kind": "number", "low": 0.0, "high": 110.0, "unit": "years"}
CITY = {"kind": "category", "levels": ["oslo", "bergen", "molde"]}
TREE = {
    "target": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {"age": NUMBER, "sex": {"kind": "category", "levels": ["f", "m"]}, "city": CITY},
}
CELLS = {
    "age": ("40", "71"),
    "sex": ("f", "m"),
    "city": ("oslo", "molde"),
    "ill": ("no", "yes"),
    "weight": ("60", "80"),
}


def changed(**columns):
    """The schema with other columns; none leaves one out."""
    kept = {**TREE["columns"], **columns}
    return {**TREE, "columns": {name: column for name, column in kept.items() if column is not None}}


OTHERS = [
    pytest.param(
        {**TREE, "target": {"column": "ill", "classes": ["yes", "no"]}},
        "classes are (yes, no), expected (no, yes)",
        id="reversed classes",
    ),
    pytest.param(
        changed(city={"kind": "category", "levels": ["oslo", "bergen", "bodo"]}),
        "levels of city are (oslo, bergen, bodo), expected (oslo, bergen, molde)",
        id="other levels",
    ),
    pytest.param(changed(age={**NUMBER, "unit": "months"}), "column age is in months, expected years", id="other unit"),
    pytest.param(
        changed(age={**NUMBER, "high": 120.0}),
        "column age lies in [0, 120], expected [0, 110]",
        id="other range",
    ),
    pytest.param(changed(weight={**NUMBER, "unit": "kg"}), "one column more: weight", id="one column more"),
    pytest.param(changed(city=None), "one column less: city", id="one column less"),
    pytest.param(
        {**TREE, "columns": {name: TREE["columns"][name] for name in ("sex", "age", "city")}},
        "columns are in the order (sex, age, city), expected (age, sex, city)",
        id="other order",
    ),
    pytest.param(
        changed(age={**NUMBER, "missing": True}),
        "missing cells of age are marked by a feature, expected not marked",
        id="missing marked",
    ),
    pytest.param({**TREE, "norm": 2.0}, "features have the norm bound 2, expected 1", id="other norm"),
]


def write_home(folder, tree=TREE, size=40, **changes):
    """A silo's folder with a CSV file and its schema."""
    folder.mkdir(parents=True, mode=0o700)
    schema = schema_from(tree, "test")
    names = [*schema.columns, schema.target.column]
    rows = [",".join(CELLS[name][row % 2] for name in names) for row in range(size)]
    write_secret(folder / "records.csv", "\n".join([",".join(names), *rows]) + "\n")
    write_secret(folder / "schema.toml", schema_text(schema))
    data = {"file": "records.csv", "columns": "schema.toml"} | changes.pop("data", {})
    write_secret(folder / "policy.toml", tomli_w.dumps(policy_tree(folder.name, data=data, **changes)))
    write_secret(folder / "sign.key", silo_key(folder.name))
    return folder


def opened(folder):
    policy = load_policy(folder / "policy.toml")
    records = load_records(policy, folder)
    return SiloService(policy, records, home_of(folder, policy), description=load_description(policy, folder, records))


@pytest.fixture
def serve(tmp_path):
    made = []

    def one(name, tree=TREE, **changes):
        made.append(opened(write_home(tmp_path / name, tree, **changes)))
        return made[-1]

    yield one
    for service in made:
        service.close()


def untouched(service):
    """Whether nothing was reserved, held or spent."""
    ledger = service._ledger
    return not ledger.accounts and not ledger.pending()


def described(tree):
    return Description.model_validate(schema_from(tree, "test").description())


def plan_for(tree, **changes):
    about = described(tree)
    terms = {"features": about.features, "task": about.task, "classes": about.classes}
    return plan_of({"name": "mb-sgd"}, **terms, schema_digest=about.digest, **changes)


def test_a_silo_tells_its_schema_and_consents_to_a_plan_for_it(serve):
    service = serve("a")
    welcome = LocalClient(service).ask(Hello())[0]
    assert welcome.schema_digest == welcome.description.digest == described(TREE).digest
    assert [column.name for column in welcome.description.columns] == ["age", "sex", "city"]
    assert welcome.description.target.classes == ("no", "yes")
    assert isinstance(LocalClient(service).ask(Propose(plan=plan_for(TREE)))[0], Consent)


@pytest.mark.parametrize(("tree", "words"), OTHERS)
def test_a_silo_refuses_a_plan_for_another_schema_in_words(serve, tree, words):
    service = serve("b", tree)
    with pytest.raises(RefusalError) as caught:
        LocalClient(service).ask(Propose(plan=plan_for(TREE), description=described(TREE)))
    assert caught.value.code == "schema"
    assert words in str(caught.value)
    assert untouched(service)


@pytest.mark.parametrize(("tree", "words"), OTHERS)
def test_a_server_does_not_start_a_study_and_names_who_differs_in_what(serve, tmp_path, tree, words):
    services = [serve("a"), serve("b", tree), serve("c")]
    with pytest.raises(TacitError) as caught:
        led(tmp_path / "run", services)
    text = str(caught.value)
    assert "The study is not started: expected the schema of silo a at every silo" in text
    assert f"silo b: {words}" in text.splitlines()[1]
    assert "silo c" not in text
    assert all(map(untouched, services))


def test_several_differences_are_all_named(serve, tmp_path):
    tree = changed(age={**NUMBER, "unit": "months"}, weight={**NUMBER, "unit": "kg"})
    tree["target"] = {"column": "ill", "classes": ["yes", "no"]}
    with pytest.raises(TacitError) as caught:
        led(tmp_path / "run", [serve("a"), serve("b", tree)])
    assert str(caught.value).splitlines()[1].strip() == (
        "silo b: classes are (yes, no), expected (no, yes); column age is in months, expected years; "
        "one column more: weight"
    )


class Nearby:
    """Silos in this process."""

    def __init__(self, services):
        self.services = {service.policy.name: service for service in services}

    def present(self):
        return list(self.services)

    def ask(self, requests, seconds, enough=None):
        return {at: [self._reply(at, raw) for raw in frames] for at, frames in requests.items()}

    def _reply(self, at, raw):
        return read_frame(io.BytesIO(self.services[at].handle(*read_frame(io.BytesIO(raw).read))).read)


def led(root, services, data=None):
    """Lead a study of one round from its folder."""
    root.mkdir()
    names = [service.policy.name for service in services]
    tree = {
        "name": "led",
        "data": data or {"name": "silo"},
        "algorithm": {"name": "mb-sgd", "num_rounds": 1, "step_size": 0.2, "clip_norm": 0.7},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
    }
    (root / "study.toml").write_text(tomli_w.dumps(tree))
    terms = {"silos": len(names), "folder": str(root), "patience": 20.0, **led_by(root, *names)}
    (root / "deployment.toml").write_text(tomli_w.dumps(terms))
    lead(root, Nearby(services))
    return [json.loads(line) for line in (root / "progress.jsonl").read_text().splitlines()]


def test_silos_of_one_schema_train_together_and_the_study_has_it_too(serve, tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "schema.toml").write_text(schema_text(schema_from(TREE, "test")))
    events = led(tmp_path / "run", [serve("a"), serve("b")], {"name": "csv", "options": {"folder": str(folder)}})
    assert [row["event"] for row in events if row["event"] in ("warning", "finished")] == ["finished"]


def test_silos_that_agree_with_each_other_must_agree_with_the_study_too(serve, tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "schema.toml").write_text(schema_text(schema_from(changed(age={**NUMBER, "unit": "months"}), "test")))
    services = [serve("a"), serve("b")]
    with pytest.raises(TacitError, match="expected the schema of the study at every silo") as caught:
        led(tmp_path / "run", services, {"name": "csv", "options": {"folder": str(folder)}})
    for name in "ab":
        assert f"silo {name}: column age is in years, expected months" in str(caught.value)
    assert all(map(untouched, services))


def test_records_without_a_schema_are_named_as_such(serve, tmp_path):
    x = silo_records(serve("a").home.folder / "records.csv", tmp_path / "a" / "schema.toml", tell=pytest.fail)
    home, policy = make_home(tmp_path / "b", x)
    weak = SiloService(policy, x, home)
    try:
        with pytest.raises(TacitError, match="silo b: has no schema: only the shape of its records") as caught:
            led(tmp_path / "run", [weak, serve("c")])
        assert "silo c" not in str(caught.value).partition("\n")[2]
        with pytest.raises(RefusalError, match="has no schema: only the shape") as caught:
            LocalClient(weak).ask(Propose(plan=plan_for(TREE), description=described(TREE)))
        assert caught.value.code == "schema"
        assert untouched(weak)
    finally:
        weak.close()


def test_silos_without_schemas_may_train_together_but_it_is_said(tmp_path):
    services = []
    for seed, name in enumerate("ab"):
        records = records_of(seed, 40)
        home, policy = make_home(tmp_path / name, records)
        services.append(SiloService(policy, records, home))
    try:
        events = led(tmp_path / "run", services)
    finally:
        for service in services:
            service.close()
    (warning,) = [row["text"] for row in events if row["event"] == "warning"]
    assert warning.startswith("a, b: no schema.")
    assert "order of classes mean the same at all silos is not known" in warning


def test_a_silo_with_a_schema_refuses_a_plan_that_names_none(serve):
    service, about = serve("a"), described(TREE)
    bare = plan_of({"name": "mb-sgd"}, features=about.features)
    with pytest.raises(RefusalError, match="has a schema, expected records without one"):
        LocalClient(service).ask(Propose(plan=bare))
    assert untouched(service)


def test_a_digest_for_records_of_another_shape_is_refused(serve):
    service = serve("a")
    plan = plan_for(TREE).model_copy(update={"features": (4,)})
    with pytest.raises(RefusalError, match=r"records have the shape \(5\), expected \(4\)") as caught:
        LocalClient(service).ask(Propose(plan=plan))
    assert caught.value.code == "schema"
    assert untouched(service)


def test_a_digest_without_words_is_refused_by_its_number(serve):
    service = serve("a")
    plan = plan_for(TREE).model_copy(update={"schema_digest": "0" * 64})
    for told in (None, described(changed(age={**NUMBER, "unit": "months"}))):  # not of that digest
        with pytest.raises(RefusalError, match=r"its digest is [0-9a-f]{16}\.\.\., expected 0{16}\.\.\."):
            LocalClient(service).ask(Propose(plan=plan, description=told))
    assert untouched(service)


def test_a_study_that_is_open_is_not_answered_after_the_schema_has_changed(serve, tmp_path):
    service, plan = serve("a"), plan_for(TREE)
    LocalClient(service).ask(Propose(plan=plan))
    service.close()
    folder = tmp_path / "a"
    (folder / "schema.toml").write_text(schema_text(schema_from(changed(age={**NUMBER, "unit": "months"}), "test")))
    again = opened(folder)  # the encoded records are the same, so the ledger is still theirs
    try:
        with pytest.raises(RefusalError) as caught:
            LocalClient(again).ask(Propose(plan=plan))
        assert caught.value.code == "schema"
    finally:
        again.close()


def test_stored_records_may_have_a_schema(tmp_path):
    folder = write_home(tmp_path / "a")
    records = load_records(load_policy(folder / "policy.toml"), folder)
    strong = load_description(load_policy(folder / "policy.toml"), folder, records)
    data = {"file": "records.npz", "columns": "../a/schema.toml", "task": "binary", "classes": 2}
    make_home(tmp_path / "b", records, data=data)
    policy = load_policy(tmp_path / "b" / "policy.toml")
    stored = load_records(policy, tmp_path / "b")
    assert load_description(policy, tmp_path / "b", stored) == strong
    with pytest.raises(PolicyError, match="makes 5 features of a record, but x has 6"):
        load_description(policy, tmp_path / "b", records_of(0, 10, features=6))
    with pytest.raises(PolicyError, match="bounds the norm of features by 1, and x has records beyond that"):
        load_description(policy, tmp_path / "b", {"x": np.full((3, 5), 7.0), "y": np.zeros(3)})


def test_a_schema_too_long_to_be_sent_is_compared_by_its_digest(serve):
    levels = [f"level {number}" for number in range(2000)]
    tree = changed(city={"kind": "category", "levels": ["oslo", "molde", *levels]})
    service = serve("a", tree)
    welcome = LocalClient(service).ask(Hello())[0]
    assert len(described(tree).model_dump_json()) > MOST_DESCRIPTION
    assert welcome.description is None
    assert welcome.schema_digest == described(tree).digest


def test_the_longest_description_fits_a_signed_header(serve):
    """Quotes double inside a signed header; a schema of nothing but short names is the worst."""
    tree = {**TREE, "columns": dict(TREE["columns"])}
    number = 0
    while described(tree).sent is not None:
        tree["columns"] = {**tree["columns"], f"c{number}": {"kind": "category", "levels": ["a", "b"]}}
        number += 1
    del tree["columns"][f"c{number - 1}"]
    cells = {f"c{place}": ("a", "b") for place in range(number)}
    CELLS.update(cells)
    try:
        welcome = LocalClient(serve("a", tree)).ask(Hello())[0]
    finally:
        for name in cells:
            del CELLS[name]
    assert welcome.description == described(tree)


CANARY = "98437261"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (
            "records.csv",
            f"age,sex,city,ill\n40,f,oslo,no\n{CANARY}x,f,oslo,no\n",
            "line 3: expected a number in column",
        ),
        ("records.csv", f"age,sex,city,ill\n40,f,oslo,{CANARY}\n", "line 2: expected the target 'ill' to be one of"),
        ("records.csv", f"40,f,{CANARY},no\n41,f,oslo,no\n", "first line has none of them"),
        ("records.csv", f"{CANARY},f,{CANARY},no\n41,f,oslo,no\n", "rename column 1 and 3"),
        ("records.npz", f"{CANARY},f,oslo,no\n", "cannot be read as an npz file"),
    ],
)
def test_no_cell_reaches_what_a_daemon_says(tmp_path, file, text, words):
    folder = write_home(tmp_path / "a", data={"file": file})
    (folder / "records.csv").unlink()
    write_secret(folder / file, text)
    command = [sys.executable, "-m", "tacit", "silo", "serve", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert CANARY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_digest_is_of_what_the_protocol_says():
    """A client of another make computes the same: sorted keys, no spaces, no null."""
    tree = schema_from(TREE, "test").description()
    clean = {
        **{key: tree[key] for key in ("encoding", "task", "classes", "norm")},
        "features": list(tree["features"]),
        "target": {"column": "ill", "classes": ["no", "yes"]},
        "columns": [
            {
                "name": "age",
                "kind": "number",
                "low": 0.0,
                "high": 110.0,
                "unit": "years",
                "log": False,
                "missing": False,
            },
            {"name": "sex", "kind": "category", "levels": ["f", "m"], "log": False, "missing": False},
            {
                "name": "city",
                "kind": "category",
                "levels": ["oslo", "bergen", "molde"],
                "log": False,
                "missing": False,
            },
        ],
    }
    text = json.dumps(clean, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert described(TREE).digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("place", [0, 5, 11])
def test_long_lists_are_shown_from_where_they_differ(place):
    levels = [f"l{number}" for number in range(12)]
    other = [*levels[:place], "odd", *levels[place + 1 :]]
    found, expected = (described(changed(city={"kind": "category", "levels": own})) for own in (other, levels))
    (line,) = differences(found, expected)
    assert "odd" in line
    assert f"l{place}" in line
    assert "12 in all" in line


def test_a_name_cannot_steer_the_terminal_of_whoever_reads_it():
    odd = {"\x1b[2Jage\n" + "x" * 500: NUMBER}
    (line,) = differences(described(changed(**odd)), described(TREE))
    assert line.startswith("one column more: ?[2Jage?xxx")
    assert len(line) < 100


@pytest.mark.parametrize(("tree", "words"), OTHERS)
def test_words_and_digests_agree(tree, words):
    assert described(tree).digest != described(TREE).digest
    assert words in differences(described(tree), described(TREE))
    assert differences(described(tree), described(tree)) == []


def test_what_a_schema_makes_of_cells_is_what_its_version_says(tmp_path):
    """If this fails, the map from cells to features has changed: count ENCODING up, and write the new numbers here."""
    tree = changed(income={"kind": "number", "low": 0.0, "high": 1e6, "log": True, "missing": True})
    (tmp_path / "schema.toml").write_text(schema_text(schema_from(tree, "test")))
    rows = ["age,sex,city,income,ill", "55,f,oslo,1000,no", "-3,m,rome,,yes"]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    records = silo_records(tmp_path / "a.csv", tmp_path / "schema.toml", tell=lambda line: None)
    scaled = np.array([[0, -1, 1, 0, 0, 2 * np.log1p(1e3) / np.log1p(1e6) - 1, 0], [-1, 1, 0, 0, 0, 0, 1]])
    middle = 2 * np.log1p(5e5) / np.log1p(1e6) - 1
    scaled[1, 5] = middle
    expected = scaled / np.maximum(1, np.linalg.norm(scaled, axis=1, keepdims=True))
    np.testing.assert_allclose(records["x"], expected, atol=2e-6)
    assert records["y"].tolist() == [0, 1]
    assert ENCODING == 1
