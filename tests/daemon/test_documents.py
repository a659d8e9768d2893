"""What the pages about the daemon say is true."""

import re
import tomllib
from pathlib import Path

import pytest

from tacit.runtime.daemon import protocol
from tacit.runtime.daemon.policy import policy_from
from tests.daemon.hostile import CODES

DOCS = Path(__file__).parents[2] / "docs"


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
        scope["Client"](Path("nowhere")).ask(protocol.Hello())


def test_every_code_and_limit_is_explained():
    text = (DOCS / "protocol.md").read_text(encoding="utf-8")
    for code in CODES - {"study"}:
        assert f"`{code}`" in text, code
    assert str(protocol.MOST_FRAME) in text
    assert str(protocol.MOST_HEADER) in text
    for model in (protocol.Welcome, protocol.Consent, protocol.Standing, protocol.Receipt):
        row = next(line for line in text.splitlines() if f"`{model.model_fields['type'].default}`" in line)
        for field in set(model.model_fields) - {"type"}:
            assert field in row, (model, field)
    for field in protocol.Plan.model_fields:
        assert field in text, field
