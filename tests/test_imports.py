"""Folders are trust domains: imports point one way."""

import ast
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
LEAVES = {"errors"}
ALLOWED = {
    "algorithm": {"recipe"},
    "recipe": {"algorithm", "objectives"},  # for annotations
    "errors": set(),
    "geometry": {"algorithm"},
    "objectives": {"algorithm", "geometry"},
    "algorithms": {"algorithm", "objectives", "geometry"},
    # A row holds all about an algorithm, its theorem and the noise that its paper prints included.
    "algorithms/catalogue.py": {"algorithm", "objectives", "recipe", "privacy", "theory"},
    "silo": {"algorithm", "objectives", "privacy"},
    "channel": {"algorithm", "privacy"},
    "privacy": {"algorithm"},
    "theory": {"algorithm", "objectives", "geometry", "privacy"},
    "choosing": {"algorithm", "algorithms", "objectives", "geometry", "privacy", "theory"},
    "data": set(),
    "simulate": {"algorithm", "objectives", "geometry", "algorithms", "silo", "channel", "privacy"},
    "deploy": None,
    "audit": None,
    "studies": {
        "algorithm",
        "objectives",
        "geometry",
        "algorithms",
        "silo",
        "channel",
        "privacy",
        "data",
        "simulate",
        "keeping",
        "theory",
        "fairness",
    },
    "cli": None,
    "__init__": None,
    "__main__": None,
    "fitting": None,
    "stopping": set(),
    "fairness": set(),
    "keeping": set(),
}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tacit":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("tacit.")}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    parts = path.relative_to(ROOT).parts
    domain = parts[0].removesuffix(".py")
    assert domain in ALLOWED, f"{domain} is not a known trust domain; say what it may see"
    allowed = ALLOWED.get("/".join(parts[:2]), ALLOWED[domain])
    if allowed is not None:
        assert imported(path) - LEAVES - {domain, "__version__"} <= allowed


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_package_needs_nothing_that_lies_beside_it(path):
    """What a checkout has and the wheel has not; `tacit reproduce` looks for its modules by name, and says so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & {"experiments", "benchmarks", "soak", "tests"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_files_fit_in_the_head(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
            length = node.end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 60, f"{node.name} has {length} lines"
