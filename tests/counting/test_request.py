"""What can be asked: cells, shares of the budget, and refusals that say what to do."""

import pytest

from tacit.counting.request import StatisticsError, columns_of, noise_ratios, parsed
from tacit.data.schema import schema_from

AGE = {"name": "age", "kind": "number", "low": 20, "high": 80}
SEX = {"name": "sex", "kind": "category", "levels": ["f", "m"]}
DEAD = {"name": "dead", "kind": "category", "levels": ["no", "yes"]}
COLUMNS = [AGE, SEX, DEAD]


def cells(**request):
    return [axis.cells for axis in parsed(COLUMNS, [request])[0].axes]


def test_a_category_has_cells_for_other_levels_and_for_what_is_missing():
    assert cells(kind="counts", columns=["sex"]) == [("f", "m", "other", "missing")]


def test_a_number_has_cells_beyond_its_edges_only_where_its_range_has():
    assert cells(kind="histogram", columns=["age"], bins=2) == [("20 to 50", "50 to 80", "missing")]
    inner = cells(kind="histogram", columns=["age"], edges=[30, 40])
    assert inner == [("30 to 40", "below 30", "above 40", "missing")]


def test_who_reaches_the_end_of_time_is_beyond_it():
    time, _ = cells(kind="survival", columns=["age", "dead"], bins=2)
    assert time == ("20 to 50", "50 to 80", "above 80", "missing")


def test_ratios_spend_what_one_release_would_and_give_more_to_whoever_needs_it():
    tables = parsed(COLUMNS, [{"kind": "counts", "columns": ["sex"]}, {"kind": "quantiles", "columns": ["age"]}])
    few, many = noise_ratios(tables).values()
    assert few**-2 + many**-2 == pytest.approx(1)
    assert many < few
    heavier = parsed(COLUMNS, [{"kind": "counts", "columns": ["sex"], "weight": 100}, tables[1].request.model_dump()])
    assert noise_ratios(heavier)["s00"] < few


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"kind": "histogram", "columns": ["age"], "edges": "auto"}, "edges that are computed from records tell"),
        ({"kind": "histogram", "columns": ["age"], "edges": [40, 30]}, "that rise"),
        ({"kind": "histogram", "columns": ["age"], "edges": [90, 99]}, "declared range 20 to 80"),
        ({"kind": "histogram", "columns": ["sex"]}, "use counts"),
        ({"kind": "counts", "columns": ["age"]}, "use histogram"),
        ({"kind": "counts", "columns": ["agee"]}, "did you mean 'age'"),
        ({"kind": "count", "columns": ["sex"]}, "counts"),
        ({"kind": "moments", "columns": ["age"], "by": "age"}, "different columns"),
        ({"kind": "moments", "columns": ["sex"]}, "use counts"),
        ({"kind": "counts", "columns": ["sex"], "by": "age"}, "a category to group by"),
        ({"kind": "correlation", "columns": ["age"]}, "expected 2 columns"),
        ({"kind": "survival", "columns": ["age", "age2"]}, "Unknown column"),
        ({"kind": "survival", "columns": ["sex", "dead"]}, "expected a number"),
        ({"kind": "counts", "columns": ["sex"], "edges": {"age": [1, 2]}}, "edges of sex only"),
        ({"kind": "table", "columns": ["age", "sex"], "bins": 4096, "by": "dead"}, None),
    ],
)
def test_what_cannot_be_asked_is_told(request_, words):
    if words is None:
        assert parsed(COLUMNS, [request_])[0].size == 4097 * 4 * 4
        return
    with pytest.raises(StatisticsError, match=words):
        parsed(COLUMNS, [request_])


def test_nothing_asked_and_too_many_cells_are_refused():
    with pytest.raises(StatisticsError, match="at least one statistic"):
        parsed(COLUMNS, [])
    wide = {"name": "w", "kind": "category", "levels": [str(i) for i in range(400)]}
    with pytest.raises(StatisticsError, match="at most 100000 cells"):
        parsed([*COLUMNS, wide], [{"kind": "table", "columns": ["age", "w"], "bins": 300}])


def test_a_schema_says_what_its_records_columns_are():
    tree = {"target": {"column": "y", "classes": ["a", "b"]}}
    tree["columns"] = {"age": {"kind": "number", "low": 0, "high": 9, "unit": "years"}, "id": {"kind": "drop"}}
    found = columns_of(schema_from(tree, "here").description())
    assert found == [
        {"name": "age", "kind": "number", "low": 0.0, "high": 9.0, "unit": "years"},
        {"name": "y", "kind": "category", "levels": ("a", "b")},
    ]
