"""`tacit price` and `tacit calibrate` through a small app of their own."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tacit.cli.accounting import calibrate_command, price_command
from tacit.privacy import Event, PricingError, price, risk

app = typer.Typer()
app.command("price")(price_command)
app.command("calibrate")(calibrate_command)

SILO = ["--records", "1234", "--rounds", "50"]


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def data(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.output.count("\n") == 1
    return json.loads(result.output)


def test_price_json_is_one_object_with_the_documented_fields():
    got = data("price", *SILO, "--batch", "87", "--sampling", "poisson", "--noise-multiplier", "2.2")
    assert set(got) == {"epsilon", "delta", "noise_multiplier", "sigma_over_clip", "accountant", "events"}
    event = Event(kind="round", noise_multiplier=2.2, count=50, records=1234, batch=87, sampling="poisson")
    assert got["epsilon"] == pytest.approx(price([event], delta=1e-6).epsilon)
    assert got["sigma_over_clip"] == pytest.approx(2.2 * 2 / 87)
    assert (got["delta"], got["accountant"], got["noise_multiplier"]) == (1e-6, "pld", 2.2)
    assert Event(**got["events"][0]) == event


def test_calibrate_inverts_price():
    delta = ("--delta", str(1 / 1234**2))
    tuned = data("calibrate", *SILO, "--epsilon", "1", *delta)
    assert tuned["noise_multiplier"] == pytest.approx(30.479, abs=1e-3)
    assert tuned["sigma_over_clip"] == pytest.approx(0.0494, abs=5e-5)
    assert 0.99 <= tuned["epsilon"] <= 1.0
    back = data("price", *SILO, "--noise-multiplier", repr(tuned["noise_multiplier"]), "--delta", str(1 / 1234**2))
    assert back["epsilon"] == pytest.approx(tuned["epsilon"], rel=1e-12)


def test_every_sampling_scheme_is_a_flag():
    costs = {}
    for sampling in ("wor", "wr", "poisson", "one-pass"):
        got = data("price", *SILO, "--batch", "24", "--sampling", sampling, "--noise-multiplier", "1.5")
        costs[sampling] = got["epsilon"]
    assert costs["poisson"] < costs["wor"] < costs["wr"] < costs["one-pass"]


def test_participations_cap_the_price():
    free = data("price", *SILO, "--noise-multiplier", "20")
    few = data("price", *SILO, "--noise-multiplier", "20", "--max-participations", "10")
    assert few["events"][0]["count"] == 10
    assert few["epsilon"] < free["epsilon"]


def test_other_flags_reach_the_accountant():
    base = ("price", *SILO, "--batch", "24", "--sampling", "poisson", "--noise-multiplier", "1")
    assert data(*base, "--capacity", "30")["epsilon"] > data(*base)["epsilon"]
    views = [data("price", *SILO, "--noise-multiplier", "30", "--accountant", a) for a in ("tight", "zcdp", "rdp")]
    assert [v["accountant"] for v in views] == ["gdp", "zcdp", "rdp"]
    assert views[0]["epsilon"] < min(v["epsilon"] for v in views[1:])


def test_no_noise_is_null_in_json_and_inf_in_words():
    assert data("price", *SILO, "--noise-multiplier", "0")["epsilon"] is None
    shown = run("price", *SILO, "--noise-multiplier", "0").output
    assert "inf" in shown
    assert "no noise, no privacy" in shown


def test_the_table_speaks_plainly():
    shown = " ".join(run("price", *SILO, "--noise-multiplier", "30.48", "--max-participations", "50").output.split())
    for words in ("epsilon", "sigma / clip", "exact Gaussian composition", "attacker", "false-positive rate"):
        assert words in shown
    assert "amplifies nothing" in shown


MILLION = ["--records", "1000000", "--rounds", "1000000", "--sampling", "poisson", "--delta", "1e-9"]


@pytest.mark.parametrize(
    ("arguments", "epsilon", "accuracy"),
    [
        # What the fallback to the price without amplification once said of the first is 505,997.
        (("--batch", "1000", "--noise-multiplier", "1"), "6.208", "69.2%"),
        (("--batch", "500000", "--noise-multiplier", "1000"), "2.909", "59.9%"),
    ],
)
def test_a_million_releases_have_one_truth(arguments, epsilon, accuracy):
    result = run("price", *MILLION, *arguments)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    for words in (f"epsilon │ {epsilon}", f"accuracy at most {accuracy}", "pld: privacy loss distributions"):
        assert words in shown
    found = data("price", *MILLION, *arguments)
    assert f"{found['epsilon']:.6g}".startswith(epsilon)
    point = risk(epsilon=found["epsilon"], delta=1e-9)
    assert float(accuracy[:-1]) / 100 < (1 + point.advantage) / 2


def test_each_accountant_says_what_it_did_and_is_read_by_itself():
    nearly = ("--batch", "1233", "--sampling", "wor", "--noise-multiplier", "30")
    shown = " ".join(run("price", "--records", "1234", "--rounds", "1", *nearly).output.split())
    assert "exact" not in shown
    full = ("price", *SILO, "--noise-multiplier", "30")
    tight, loose = (" ".join(run(*full, "--accountant", a).output.split()) for a in ("tight", "zcdp"))
    assert "gdp: exact Gaussian composition" in tight
    accuracies = [float(shown.split("accuracy at most ")[1].split("%")[0]) for shown in (tight, loose)]
    epsilon = data(*full, "--accountant", "zcdp")["epsilon"]
    assert accuracies[1] == pytest.approx(50 * (1 + risk(epsilon=epsilon, delta=1e-6).advantage), abs=0.06)
    assert accuracies[0] < accuracies[1] - 5


def test_neighbours_that_cannot_be_priced_are_not_drawn(tmp_path):
    """Full batches are exact at any delta; the curves of sampled ones beside them are not."""
    file = tmp_path / "price.png"
    small = ("--records", "60", "--rounds", "4", "--noise-multiplier", "6", "--delta", "1e-12")
    assert data("price", *small, "--plot", str(file))["accountant"] == "gdp"
    assert file.stat().st_size > 1000
    # So many batches of this size are more than one pass has.
    many = ("--records", "60", "--rounds", "9", "--batch", "10", "--sampling", "wor", "--noise-multiplier", "6")
    data("price", *many, "--plot", str(tmp_path / "many.png"))
    assert (tmp_path / "many.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--batch", "100", "--sampling", "one-pass"),
            r"count=50 x batch=100 = 5000 <= passes=1 x records=1234",
        ),
        (("--sampling", "poisson"), "--batch for sampling"),
        (("--batch", "2000", "--sampling", "wor"), "batch=2000 <= records=1234"),
        (("--delta", "2"), r"delta=2\.0 < 1"),
        (("--batch", "10", "--sampling", "wor", "--delta", "1e-12"), "delta=1e-12 >= 1e-09"),
        (("--max-participations", "-2"), "max_participations=-2"),
        (
            ("--batch", "10", "--sampling", "wor", "--rounds", "1000000000000"),
            "at most 100000000000 subsampled releases",
        ),
    ],
)
def test_bad_input_raises_the_pricing_error(arguments, message):
    result = run("price", *SILO, "--noise-multiplier", "2", *arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, PricingError)
    with pytest.raises(PricingError, match=message):
        raise result.exception


def test_unknown_choices_are_usage_errors():
    assert run("price", *SILO, "--noise-multiplier", "2", "--sampling", "epochs").exit_code == 2
    assert run("price", *SILO).exit_code == 2


def test_the_picture_is_drawn(tmp_path):
    file = tmp_path / "made" / "price.png"
    got = data("price", "--records", "60", "--rounds", "4", "--noise-multiplier", "6", "--plot", str(file))
    assert got["accountant"] == "gdp"
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
