"""Folders are trust domains: imports point one way."""

import ast
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
LEAVES = {"entropy", "errors", "stopping", "__version__"}
MATHS = {"algorithm", "objectives", "geometry", "privacy"}
ENGINE = MATHS | {"silo", "channel"}
ALLOWED = {
    "entropy": set(),
    "errors": set(),
    "stopping": set(),
    "keeping": set(),
    "algorithm": set(),
    "geometry": set(),
    "objectives": {"algorithm", "geometry"},
    "fairness": set(),
    "counting": set(),
    "data": set(),
    "models": {"algorithm", "objectives", "data", "privacy"},
    "privacy": {"algorithm"},
    "theory": {"algorithm", "objectives", "geometry", "privacy"},
    "algorithms": {"algorithm", "objectives", "geometry", "counting"},
    "silo": {"algorithm", "objectives", "privacy", "channel"},
    "channel": {"algorithm", "privacy"},
    "plans": MATHS | {"algorithms", "silo", "channel"},
    "simulate": ENGINE,
    "studies": ENGINE
    | {"algorithms", "plans", "data", "simulate", "theory", "fairness", "keeping", "models", "counting"},
    "choosing": {"plans", "objectives", "geometry", "theory"},
    "deploy": ENGINE | {"plans"},
    "deploy/shuffler": {"channel", "deploy"},
    "deploy/silo": ENGINE | {"algorithms", "plans", "data", "deploy", "deploy/shuffler", "counting"},
    "deploy/server": ENGINE
    | {"algorithms", "plans", "simulate", "studies", "models", "keeping", "deploy", "deploy/shuffler", "counting"},
    "deploy/flower": {"deploy", "deploy/server"},
    "deploy/consortium": ENGINE
    | {
        "plans",
        "data",
        "studies",
        "models",
        "deploy",
        "deploy/silo",
        "deploy/server",
        "deploy/shuffler",
        "deploy/flower",
    },
    "audit": ENGINE | {"algorithms", "plans", "data", "simulate", "studies", "deploy", "deploy/silo", "deploy/server"},
    "checking": {"algorithm", "objectives", "data", "privacy", "silo", "plans"},
    "continuing": {"algorithm", "objectives", "privacy", "plans", "models", "checking"},
    "fitting": ENGINE | {"algorithms", "plans", "data", "simulate", "models", "checking", "continuing"},
    "estimators": {"algorithm", "data", "fitting", "models", "objectives", "privacy"},
    "cli": ENGINE
    | {"algorithms", "plans", "data", "simulate", "studies", "theory", "choosing", "audit", "models", "counting"}
    | {"deploy", "deploy/silo", "deploy/server", "deploy/shuffler", "deploy/flower", "deploy/consortium"},
    "__init__": {"algorithm", "plans", "objectives", "privacy", "fitting", "models", "estimators"},
    "__main__": {"cli"},
}
"""What each trust domain may see, besides itself and the leaves."""

READERS = {"csv_silos", "schema"}
"""All that a silo's daemon may load of ``data``: the reader of its own file."""


def domain_of(parts: Sequence[str]) -> str:
    """The longest rule that covers a module: deployed parties are domains of their own."""
    return next((name for name in ("/".join(parts[:2]), parts[0]) if name in ALLOWED), parts[0])


def imports_of(path: Path) -> Iterator[list[str]]:
    """The modules of Tacit that a file imports, as the parts of their names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tacit":
            parts = node.module.split(".")[1:]
            yield from ([parts] if len(parts) > 1 else [[*parts, alias.name] for alias in node.names])
        if isinstance(node, ast.Import):
            yield from (a.name.split(".")[1:] for a in node.names if a.name.startswith("tacit."))


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_one_way(path):
    domain = domain_of(path.with_suffix("").parts)
    assert domain in ALLOWED, f"{domain} is not a known trust domain; say what it may see"
    allowed = ALLOWED[domain] | LEAVES | {domain}
    for parts in imports_of(ROOT / path):
        assert domain_of(parts) in allowed, ".".join(parts)
        assert domain != "deploy/silo" or parts[0] != "data" or parts[1] in READERS, "a daemon reads one file"


def test_no_two_domains_see_each_other():
    edges = {(domain_of(p.with_suffix("").parts), domain_of(parts)) for p in FILES for parts in imports_of(ROOT / p)}
    assert not [pair for pair in edges if pair[0] < pair[1] and pair[::-1] in edges]


def test_no_modules_import_each_other_in_a_circle():
    modules = {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for p in FILES}
    edges = {name: set() for name in modules}
    for name, path in modules.items():
        for parts in imports_of(ROOT / path):
            # `from tacit.a import b` may mean the module a.b, or a name in a.
            whole, folder = ".".join(parts), ".".join(parts[:-1])
            edges[name] |= {whole if whole in modules else folder} & set(modules) - {name}
    assert list(TopologicalSorter(edges).static_order())


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_package_needs_nothing_that_lies_beside_it(path):
    """What a checkout has and the wheel has not; `tacit reproduce` looks for its modules by name, and says so."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & {"experiments", "benchmarks", "soak", "tests"}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_functions_fit_in_the_head(path):
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
            length = node.end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 40, f"{node.name} has {length} lines"
