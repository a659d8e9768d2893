"""What the pages about the daemon say is true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tacit.deploy import wire
from tacit.deploy.silo.models import MOST_KEPT, MOST_TEXT
from tacit.deploy.silo.policy import policy_from
from tacit.deploy.silo.service import SiloService
from tacit.plans.catalogue import find
from tacit.silo.ledger import inspect
from tests.algorithms.table import CASES, LOGISTIC
from tests.deploy.silo.consortium import PROPOSER, make_home, records_of
from tests.deploy.silo.hostile import CODES

DOCS = Path(__file__).parents[3] / "docs"


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_policy_of_the_threat_model_is_a_policy():
    [block] = blocks("threat-model.md", "toml")
    assert policy_from(tomllib.loads(block)).approval.mode == "manual"


def test_the_driver_of_the_protocol_is_code():
    [block] = blocks("protocol.md", "python")
    scope: dict = {}
    exec(compile(block, "protocol.md", "exec"), scope)
    assert scope["plan"].study
    with pytest.raises(FileNotFoundError):
        scope["Client"](Path("nowhere"), proposer=PROPOSER).ask(wire.Hello())


def test_the_backup_recipe_copies_a_ledger_that_is_its_owners_alone(tmp_path):
    [recipe] = blocks("deployment.md", "bash")
    home, policy = make_home(tmp_path / "clinic", records_of(0, 20))
    service = SiloService(policy, records_of(0, 20), home)
    for there, here in (
        ("/srv/tacit-silo", tmp_path),
        ("/srv/backup", tmp_path / "b"),
        ("/opt/tacit/bin/python", sys.executable),
    ):
        recipe = recipe.replace(there, str(here))
    (tmp_path / "b" / "clinic").mkdir(0o700, parents=True)
    # The daemon holds the ledger meanwhile.
    subprocess.run(["sh", "-e", "-c", recipe], check=True)
    service.close()
    copies = list((tmp_path / "b" / "clinic").iterdir())
    assert {path.name for path in copies} == {"ledger.sqlite", "policy.toml", "sign.key"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*copies, tmp_path / "b" / "clinic"])
    assert inspect(tmp_path / "b" / "clinic" / "ledger.sqlite") == inspect(home.ledger)


def test_rounds_that_are_no_gradients_have_a_row():
    """All others are a mean gradient at the broadcast point, says the table; the hostile server holds them to it."""
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    table = text[text.index("| algorithm | kind of round |") :].split("\n\n")[0]
    for name, case in CASES.items():
        kinds = set(case.build(LOGISTIC, channel="direct").rounds) - {"gradient"}
        if kinds and not find(name).reads_attribute:
            missing = [word for word in (name, *kinds) if f"`{word}`" not in table]
            assert not missing, f"docs/protocol.md: no row for {missing}"


def test_every_code_and_limit_is_explained():
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    for code in CODES - {"study"}:
        assert f"`{code}`" in text, code
    assert str(wire.MOST_FRAME) in text
    assert str(wire.MOST_HEADER) in text
    assert f"{wire.MOST_PART} bytes" in text
    assert f"{wire.MOST_WHOLE} bytes" in text
    assert f"{MOST_TEXT} bytes" in text
    assert f"{MOST_KEPT} bytes" in text
    for model in (wire.Welcome, wire.Consent, wire.Standing, wire.Held, wire.Piece, wire.Receipt, wire.Kept):
        row = next(line for line in text.splitlines() if f"`{model.model_fields['type'].default}`" in line)
        for field in set(model.model_fields) - {"type"}:
            assert field in row, (model, field)
    for field in wire.Plan.model_fields:
        assert field in text, field
