"""Schemas without records: written from a description, compared in words, and enough to price a study."""

import json
import shutil

import pytest

from tacit.data.schema import read_schema, schema_from, schema_text
from tacit.errors import TacitError
from tests.cli.test_choosing import DECLARE, clinics, tacit

__all__ = ["clinics"]


def test_a_study_is_priced_without_records_and_to_the_last_digit_as_with_them(clinics, tmp_path):
    tacit("init", clinics, *DECLARE)
    known = json.loads(tacit("plan", clinics / "study.toml", "--json").stdout)
    counts = ",".join(str(silo["records"]) for silo in known["silos"])
    bare = tmp_path / "server"
    bare.mkdir()
    for name in ("study.toml", "schema.toml"):
        shutil.copy(clinics / name, bare)
    found = json.loads(tacit("plan", bare / "study.toml", "--records", counts, "--json").stdout)
    for key in ("sigma_of_mean_over_clip", "theory", "guarantee", "grid"):
        assert found[key] == known[key]
    for silo, expected in zip(found["silos"], known["silos"], strict=True):
        assert {**silo, "name": ""} == {**expected, "name": ""}
    assert [silo["name"] for silo in found["silos"]] == ["silo 1", "silo 2", "silo 3", "silo 4"]
    assert not found["preprocessing_private"]
    shown = tacit("plan", bare / "study.toml", "--records", counts).stdout
    assert "silo 4" in shown
    assert "leaves out the records held out" not in shown


def test_any_study_can_be_priced_by_a_schema(clinics):
    tacit("init", clinics, *DECLARE)
    words = ("plan", "heart-disease", "--set", "algorithm.num_rounds=3", "--records", "300,200")
    found = json.loads(tacit(*words, "--schema", clinics / "schema.toml", "--json").stdout)
    assert [silo["records"] for silo in found["silos"]] == [300, 200]
    with pytest.raises(TacitError, match="Expected --schema with --records: heart-disease has no schema"):
        tacit(*words)


@pytest.mark.parametrize("records", ["", "300,", "300,x", "0,3", "-2", "1.5"])
def test_numbers_of_records_that_are_none_are_refused(clinics, records):
    tacit("init", clinics, *DECLARE)
    with pytest.raises(TacitError, match="Expected --records as whole numbers above 0"):
        tacit("plan", clinics / "study.toml", "--records", records)
    with pytest.raises(TacitError, match="Expected --schema together with --records"):
        tacit("plan", clinics / "study.toml", "--schema", clinics / "schema.toml")


def test_a_schema_that_was_read_from_records_prices_nothing(clinics):
    tacit("init", clinics, "--target", "ill", "--read-records")
    with pytest.raises(TacitError, match="were read from records"):
        tacit("plan", clinics / "study.toml", "--records", "30,30")


TOML = """
[age]
range = "0:110"
unit = "years"

[income]
kind = "number"
low = 0
high = 1e6
log = true
missing = true

[city]
levels = ["oslo", "bergen", "molde"]

[remarks]
kind = "drop"

[ill]
target = true
classes = ["no", "yes"]
"""
CSV = """name,kind,range,levels,unit,target,log,missing
age,,0:110,,years,,,
income,number,0:1e6,,,,yes,yes
city,category,,oslo|bergen|molde,,no,,
remarks,drop,,,,,,
ill,,,no|yes,,yes,,
"""


@pytest.mark.parametrize(("name", "text"), [("columns.toml", TOML), ("columns.csv", CSV)])
def test_a_schema_is_written_from_a_description_without_any_record(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    out = tmp_path / "made" / "schema.toml"
    said = tacit("init", "--schema-only", tmp_path / name, "-o", out).stdout
    assert f"--columns {out}" in said
    schema = read_schema(out)
    assert schema.used == ("age", "income", "city")
    assert (schema.columns["age"].low, schema.columns["age"].high, schema.columns["age"].unit) == (0, 110, "years")
    assert schema.columns["income"].log
    assert schema.columns["income"].missing
    assert schema.columns["city"].levels == ("oslo", "bergen", "molde")
    assert schema.target.classes == ("no", "yes")
    assert schema.read_from_records == ()
    with pytest.raises(TacitError, match="exists; use --force"):
        tacit("init", "--schema-only", tmp_path / name, "-o", out)
    with pytest.raises(TacitError, match="without --range, --epsilon; write it into the data dictionary"):
        tacit("init", "--schema-only", tmp_path / name, "--range", "age=0:1", "--epsilon", "2")


def test_a_number_can_be_the_target(tmp_path):
    (tmp_path / "d.toml").write_text('[a]\nrange = "0:1"\n[cost]\nrange = "0:900"\nunit = "euros"\ntarget = true\n')
    tacit("init", "--schema-only", tmp_path / "d.toml")
    target = read_schema(tmp_path / "schema.toml").target
    assert (target.task, target.range, target.unit) == ("regression", (0.0, 900.0), "euros")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[a]\nrange = "0:1"\n', "expected one target, got none"),
        ('[a]\nrange = "0:1"\ntarget = true\n[b]\nrange = "0:1"\ntarget = true\n', "expected one target, got a, b"),
        ('[a]\nrnge = "0:1"\n', "column 'a': Unknown key 'rnge'; did you mean 'range'"),
        ('[a]\nkind = "number"\n[b]\ntarget = true\nclasses = ["0", "1"]\n', "column 'a': expected a range"),
        ('[a]\nrange = "0"\n[b]\ntarget = true\nclasses = ["0", "1"]\n', "column 'a': expected range in numbers"),
        ('[a]\nrange = "2:1"\n[b]\ntarget = true\nclasses = ["0", "1"]\n', "low=2 < high=1"),
        ('[a]\nlevels = ["f", "m"]\nunit = "kg"\n[b]\ntarget = true\nrange = "0:1"\n', "columns.a.unit: Unknown key"),
        ('[a]\nrange = "0:1"\n[b]\ntarget = true\nunit = "kg"\nclasses = ["0", "1"]\n', "unit only where the target"),
        ("a = 3\n", "expected a table for each column"),
    ],
)
def test_descriptions_that_make_no_schema_are_explained(tmp_path, text, words):
    (tmp_path / "d.toml").write_text(text, encoding="utf-8")
    with pytest.raises(TacitError, match=words):
        tacit("init", "--schema-only", tmp_path / "d.toml", "-o", tmp_path / "out.toml")
    assert not (tmp_path / "out.toml").exists()


def test_a_diff_says_in_words_what_differs(tmp_path):
    for name, text in (
        ("a.toml", TOML),
        ("b.toml", TOML.replace("years", "months").replace('"no", "yes"', '"yes", "no"')),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        tacit("init", "--schema-only", tmp_path / name, "-o", tmp_path / f"schema-{name}")
    first, second = tmp_path / "schema-a.toml", tmp_path / "schema-b.toml"
    done = tacit("schema", "diff", first, second, code=1)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"{second}: classes are (yes, no), expected (no, yes)",
        f"{second}: column age is in months, expected years",
    ]
    found = json.loads(tacit("schema", "diff", first, second, "--json", code=1).stdout)
    assert (found["same"], len(found["differences"]), len(set(found["digests"]))) == (False, 2, 2)
    same = tacit("schema", "diff", first, first, code=1)
    assert same.exit_code == 0
    assert json.loads(tacit("schema", "diff", first, first, "--json", code=1).stdout)["differences"] == []
    shown = tacit("schema", "show", first).stdout
    assert "0 to 110" in shown
    assert "years" in shown
    assert found["digests"][0] in shown.replace("\n", "")
    assert json.loads(tacit("schema", "show", first, "--json").stdout)["digest"] == found["digests"][0]


def test_dropped_columns_and_minus_zero_make_no_difference(tmp_path):
    tree = {
        "target": {"column": "ill", "classes": ["no", "yes"]},
        "columns": {"age": {"kind": "number", "low": 0.0, "high": 1.0}},
    }
    other = {**tree, "columns": {"note": {"kind": "drop"}, "age": {"kind": "number", "low": -0.0, "high": 1}}}
    for name, one in (("a", tree), ("b", other)):
        (tmp_path / name).write_text(schema_text(schema_from(one, name)), encoding="utf-8")
    assert tacit("schema", "diff", tmp_path / "a", tmp_path / "b", code=1).exit_code == 0


def test_a_schema_of_the_first_version_opens(tmp_path):
    text = """format = 1
norm = 1.0
read_from_records = []

[target]
column = "ill"
classes = ["no", "yes"]

[columns.age]
kind = "number"
low = 0.0
high = 110.0
log = false
missing = false

[columns.sex]
kind = "category"
levels = ["f", "m"]
missing = false
"""
    (tmp_path / "schema.toml").write_text(text, encoding="utf-8")
    assert read_schema(tmp_path / "schema.toml").columns["age"].unit is None
    (tmp_path / "schema.toml").write_text(text.replace("format = 1", "format = 2"), encoding="utf-8")
    with pytest.raises(TacitError, match="expected format=1, got 2"):
        read_schema(tmp_path / "schema.toml")
