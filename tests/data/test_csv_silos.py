"""Folders of CSV silos: what is read, what is refused, and what counts as private."""

import numpy as np
import pytest

from tacit import data
from tacit.data.csv_silos import silo_records
from tacit.data.discover import Declared, draft, look
from tacit.data.schema import CategoryColumn, NumberColumn, Schema, TargetPart, schema_text

HEADER = "age,sex,city,when,ill"
ROWS = ["50,f,a,2024-01-02,no", "40,m,b,2024-02-02,yes", ",f,c,2023-01-09,no", "60,x,a,2024-01-05,yes"]
DECLARED = Declared(
    ranges={"age": (20.0, 80.0)}, levels={"sex": ("f", "m"), "city": ("a", "b", "c"), "ill": ("no", "yes")}
)


@pytest.fixture
def folder(tmp_path):
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("\n".join([HEADER, *ROWS * 5]) + "\n", encoding="utf-8")
    return tmp_path


def write_schema(folder, declared=DECLARED, **how):
    drafted = draft(look(folder), "ill", declared, **{"read_records": False, "private": False, **how})
    (folder / "schema.toml").write_text(schema_text(drafted.schema), encoding="utf-8")
    return drafted


def test_declared_columns_become_features(folder):
    drafted = write_schema(folder, norm=100.0)
    records = silo_records(folder / "north.csv", folder / "schema.toml", tell=lambda line: None)
    names = ["age", "age missing", "sex", "city=a", "city=b", "city=c"]
    np.testing.assert_allclose(
        records["x"][:4],
        [[0, 0, -1, 1, 0, 0], [-1 / 3, 0, 1, 0, 1, 0], [0, 1, -1, 0, 0, 1], [1 / 3, 0, 0, 1, 0, 0]],
        atol=1e-6,
    )
    assert records["y"][:4].tolist() == [0, 1, 0, 1]
    federation = data.load("csv", folder=str(folder), validation=0.0, test=0.2)
    assert [silo.name for silo in federation.silos] == ["north", "south"]
    assert list(federation.feature_names) == names
    assert not federation.touches_private_data
    assert any("when: DROPPED, it holds dates" in line for line in drafted.assumed)
    assert any("age: missing at north 5, south 5" in line for line in drafted.assumed)
    assert drafted.loud == ()


def test_what_records_say_must_be_declared_or_is_marked(folder):
    with pytest.raises(data.DataError, match="public levels of age, sex, city, ill") as error:
        write_schema(folder, Declared())
    assert "--read-records" in str(error.value)
    drafted = write_schema(folder, Declared(levels={"ill": ("no", "yes")}), read_records=True)
    assert drafted.schema.read_from_records == ("age", "sex", "city")
    assert len(drafted.loud) == 3
    assert data.load("csv", folder=str(folder)).touches_private_data


def test_a_declared_level_is_a_value_whatever_its_name(folder):
    (folder / "south.csv").write_text(f"{HEADER}\n50,none,a,2024-01-02,no\n40,,NA,2024-02-02,yes\n", encoding="utf-8")
    found = look(folder, levels={"sex": ("none", "f", "m"), "city": ("a", "b", "c", "NA")})
    assert found.columns["sex"].missing == {"north": 0, "south": 1}
    assert found.columns["city"].missing == {"north": 0, "south": 0}
    assert look(folder).columns["sex"].missing == {"north": 0, "south": 2}


def test_private_statistics_need_no_range_but_levels(folder):
    drafted = write_schema(folder, Declared(levels=DECLARED.levels), private=True)
    assert drafted.schema.norm == "box"
    assert drafted.schema.columns["age"].log
    x = silo_records(folder / "north.csv", folder / "schema.toml", tell=lambda line: None)["x"]
    assert np.abs(x).max() <= 1.0
    assert drafted.schema.bound == pytest.approx(np.sqrt(6))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age,sex,city,ill\n1,f,a,no\n", r"south.csv has no column 'when', which .*north.csv has"),
        (HEADER + ",extra\n1,f,a,2024-01-01,no,3\n", r"north.csv has no column 'extra', which .*south.csv has"),
        ("Age,sex,city,when,ill\n1,f,a,2024-01-01,no\n", r"south.csv has no column 'age'.*rename 'Age', which it has"),
        (HEADER + "\n1,f,a\n", r"south.csv, line 2: expected 5 cells"),
        (HEADER + "\n", "no records"),
        ("", "is empty"),
        ("age,age,city,when,ill\n1,2,3,4,5\n", "different column names"),
    ],
)
def test_files_that_do_not_fit_are_named(folder, text, words):
    (folder / "south.csv").write_text(text, encoding="utf-8")
    with pytest.raises(data.DataError, match=words):
        look(folder)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("old,f,a,x,no", r"south.csv, line 2: expected a number in column 'age'; correct"),
        ("1,f,a,x,maybe", r"south.csv, line 2: expected the target 'ill' to be one of no, yes; correct"),
        ("1,f,a,x,", r"south.csv, line 2: the target 'ill' is missing"),
    ],
)
def test_cells_that_do_not_fit_are_named(folder, row, words):
    write_schema(folder)
    (folder / "south.csv").write_text(f"{HEADER}\n{row}\n", encoding="utf-8")
    with pytest.raises(data.DataError, match=words):
        data.load("csv", folder=str(folder))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("old,f,a,2024-01-01,no", r"south.csv, line 3: expected a number in column 'age'; correct the cell"),
        ("1,f,a,2024-01-01,maybe", r"--levels ill=no,yes .*'maybe' in .*south.csv, line 3"),
        ("1,f,a,2024-01-01,", r"south.csv, line 3: the target 'ill' is missing"),
    ],
)
def test_cells_that_do_not_fit_are_named_before_a_schema_is_written(folder, row, words):
    (folder / "south.csv").write_text(f"{HEADER}\n{ROWS[0]}\n{row}\n", encoding="utf-8")
    with pytest.raises(data.DataError, match=words):
        write_schema(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levels": {"sex": ("f",)}}, "give at least two levels, each once, or --drop sex"),
        ({"levels": {"ill": ("no",)}}, "give at least two levels, each once, or choose another --target"),
        ({"levels": {"sex": ("f", "f")}}, "each once"),
        ({"levels": {"sexx": ("f", "m")}}, "Expected --levels to name a column. .*'sexx'; did you mean 'sex'"),
        ({"ranges": {"agee": (0.0, 3.0)}}, "Unknown column 'agee'; did you mean 'age'. Known: age, .*, sex"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(folder, change, words):
    ranges = {**DECLARED.ranges, **change.get("ranges", {})}
    levels = {**DECLARED.levels, **change.get("levels", {})}
    with pytest.raises(data.DataError, match=words):
        write_schema(folder, Declared(ranges, levels))


def test_a_target_that_never_changes_is_refused_with_its_fix(tmp_path):
    (tmp_path / "a.csv").write_text("age,ill\n1,no\n2,no\n3,no\n", encoding="utf-8")
    with pytest.raises(data.DataError, match="every cell of 'ill' holds 'no'; declare its classes, --levels ill=A,B"):
        draft(look(tmp_path), "ill", Declared(), read_records=True, private=False)


def test_steps_speak_of_levels_by_name(folder):
    drafted = write_schema(folder)
    steps = {step.name: step.detail for step in data.load("csv", folder=str(folder)).steps}
    assert "sex: m +1, f -1, anything else 0" in steps["fixed columns"]
    assert any("sex: 'x' occurs but is not among its levels" in line for line in drafted.assumed)


def test_silos_refuse_a_schema_that_was_read_from_records(folder):
    write_schema(folder, Declared(levels=DECLARED.levels), read_records=True)
    with pytest.raises(data.DataError, match=r"of age were read from records.*Declare them"):
        silo_records(folder / "north.csv", folder / "schema.toml", tell=lambda line: None)


def test_a_silo_too_small_to_train_is_named(folder):
    write_schema(folder)
    (folder / "south.csv").write_text(f"{HEADER}\n{ROWS[0]}\n", encoding="utf-8")
    with pytest.raises(data.DataError, match=r"'south' has 1 records in all .* give it more records"):
        data.load("csv", folder=str(folder), validation=0.0, test=0.9)


def test_columns_beyond_the_schema_are_refused(folder):
    write_schema(folder)
    (folder / "south.csv").write_text(f"{HEADER},extra\n1,f,a,x,no,1\n", encoding="utf-8")
    with pytest.raises(data.DataError, match="'extra' that the schema does not know"):
        data.load("csv", folder=str(folder))
    (folder / "south.csv").write_text("sex,city,when,ill\nf,a,x,no\n", encoding="utf-8")
    with pytest.raises(data.DataError, match="has no column 'age', which the schema asks for"):
        data.load("csv", folder=str(folder))


def misspell(folder, right, wrong):
    """Write a schema and misspell a word of it, once."""
    write_schema(folder)
    path = folder / "schema.toml"
    text = path.read_text(encoding="utf-8")
    assert right in text
    path.write_text(text.replace(right, wrong, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (
            "[columns.sex]",
            "[columns.sx]",
            r"north.csv has no column 'sx', which the schema names; did you mean 'sex'\?",
        ),
        ("[columns.when]", "[columns.wen]", r"has no column 'wen', which the schema names; did you mean 'when'\?"),
        ('column = "ill"', 'column = "il"', r"has no column 'il', which the schema names; did you mean 'ill'\?"),
        ("levels = ", "levls = ", r"columns.\w+.levls: Unknown key 'levls'; did you mean 'levels'\? Known: .*missing"),
        (
            "low = ",
            "lo = ",
            r"columns.age.low: missing; set it\.\n  columns.age.lo: Unknown key 'lo'; did you mean 'low'",
        ),
        ("classes = ", "clases = ", r"target.clases: Unknown key 'clases'; did you mean 'classes'\?"),
        ("norm = ", "nrm = ", r"nrm: Unknown key 'nrm'; did you mean 'norm'\?"),
        ('"category"', '"categry"', r"columns.\w+.kind: Unknown kind 'categry'; did you mean 'category'\?"),
        ('kind = "number"\n', "", r"columns.age.kind: missing; set it to one of number, category, drop\."),
    ],
)
def test_a_misspelt_schema_is_answered_with_what_was_meant(folder, right, wrong, words):
    misspell(folder, right, wrong)
    with pytest.raises(data.DataError, match=words) as caught:
        data.load("csv", folder=str(folder))
    assert "Field required" not in str(caught.value)
    assert "not permitted" not in str(caught.value)


@pytest.mark.parametrize("cell", ["178,5", "-0,25", "1.178,5"])
def test_decimal_commas_are_to_be_points(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f"height;ill\n160;no\n{cell};yes\n", encoding="utf-8")
    words = r"a.csv, line 3: expected a number in column 'height'; write decimals with a point, not a comma,"
    with pytest.raises(data.DataError, match=words):
        look(tmp_path)
    assert look(tmp_path, levels={"height": ("160", cell)}).columns["height"].kind == "category"
    schema = Schema(
        target=TargetPart(column="ill", classes=("no", "yes")), columns={"height": NumberColumn(low=0, high=250)}
    )
    (tmp_path / "schema.toml").write_text(schema_text(schema), encoding="utf-8")
    with pytest.raises(data.DataError, match=words):
        data.load("csv", folder=str(tmp_path))


def test_regression_targets_are_scaled_and_semicolons_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("dose;cost\n1;100\n2;900\n3;5000\n", encoding="utf-8")
    target = TargetPart(column="cost", low=0, high=1000)
    schema = Schema(target=target, columns={"dose": NumberColumn(low=0, high=4)})
    (tmp_path / "schema.toml").write_text(schema_text(schema), encoding="utf-8")
    records = silo_records(tmp_path / "a.csv", tmp_path / "schema.toml", tell=lambda line: None)
    np.testing.assert_allclose(records["y"], [0.1, 0.9, 1.0], rtol=1e-6)
    assert records["y"].dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": {"age": NumberColumn.model_construct(kind="number", low=2.0, high=1.0)}}, "low=2 < high=1"),
        ({"columns": {"sex": CategoryColumn.model_construct(kind="category", levels=("f",))}}, "at least 2"),
    ],
)
def test_schemas_that_make_no_sense_are_refused(tmp_path, change, words):
    good = Schema(target=TargetPart(column="y", classes=("0", "1")), columns={"a": NumberColumn(low=0, high=1)})
    (tmp_path / "schema.toml").write_text(schema_text(good.model_copy(update=change)), encoding="utf-8")
    (tmp_path / "a.csv").write_text("age,sex,y\n1,f,0\n", encoding="utf-8")
    with pytest.raises(data.DataError, match=words):
        data.load("csv", folder=str(tmp_path))


def test_synthetic_records_have_the_sizes_that_were_asked_for():
    federation = data.load("synthetic", sizes=[30, 50], features=4, heterogeneity=1.0, groups=2, validation=0.0)
    assert [len(silo.train["y"]) + len(silo.test["y"]) for silo in federation.silos] == [30, 50]
    assert federation.feature_shape == (4,)
    assert set(np.concatenate([silo.train["s"] for silo in federation.silos])) == {0, 1}
    with pytest.raises(data.DataError, match="correct data\\.options"):
        data.load("synthetic", sizes=[1])


def test_an_owner_hears_which_cells_do_not_fit_the_schema(folder):
    declared = Declared(ranges={"age": (45.0, 55.0)}, levels=DECLARED.levels)
    drafted = write_schema(folder, declared)
    assert "age: values outside 45:55 occur; they are moved to its ends." in drafted.assumed
    said: list[str] = []
    silo_records(folder / "north.csv", folder / "schema.toml", tell=said.append)
    assert len(said) == 1
    # Of every four rows one age is 40 and one 60, one is missing, and one sex is x.
    assert "10 cells of 'age' outside [45, 55], moved to its ends" in said[0]
    assert "5 cells of 'sex' not among its levels, counted as zeros" in said[0]
    assert "city" not in said[0]


def test_a_regression_target_outside_its_range_is_told(tmp_path):
    (tmp_path / "a.csv").write_text("x,cost\n" + "0.5,12\n0.1,3\n" * 3, encoding="utf-8")
    known = Declared(ranges={"x": (0.0, 1.0), "cost": (0.0, 10.0)})
    drafted = draft(look(tmp_path), "cost", known, read_records=False, private=False)
    assert any("cost: values outside 0:10 occur" in line for line in drafted.assumed)
    (tmp_path / "schema.toml").write_text(schema_text(drafted.schema), encoding="utf-8")
    said: list[str] = []
    silo_records(tmp_path / "a.csv", tmp_path / "schema.toml", tell=said.append)
    assert ["3 cells of 'cost' outside [0, 10]" in line and "'x'" not in line for line in said] == [True]


def test_classes_that_are_not_declared_are_named_with_the_flag(folder):
    levels = {**DECLARED.levels, "ill": ("no", "maybe")}
    with pytest.raises(data.DataError) as error:
        write_schema(folder, Declared(DECLARED.ranges, levels))
    assert "--levels ill=no,maybe" in str(error.value)
    assert "holds 'no', 'yes'" in str(error.value)
    assert "--levels ill=no,yes" in str(error.value)
    assert "schema" not in str(error.value)
