"""An algorithm's file is its equation, states and steps: little of it is imports, signatures and forwarding."""

import ast
import statistics
from pathlib import Path

import pytest

import tacit

FILES = [
    path
    for path in sorted((Path(tacit.__file__).parent / "algorithms").rglob("*.py"))
    if path.name not in ("catalogue.py", "__init__.py")
]


def overhead(text: str) -> set[int]:
    """Lines of imports, of signatures of a module's functions, and lines that only hand their parameters on by name."""
    tree, found = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= set(range(node.lineno, node.end_lineno + 1))
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        found |= set(range(function.lineno, function.body[0].lineno))
        own = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            handed = [k.value for k in call.keywords if isinstance(k.value, ast.Name) and k.value.id == k.arg]
            found |= {value.lineno for value in handed if value.id in own}
    return found


def test_the_counter_counts():
    text = "import os\n\n@some\ndef f(\n    a, b\n):\n    c = g(a=a,\n        b=b,\n        d=a)\n    return h(c=c)\n"
    assert overhead(text) == {1, 4, 5, 6, 7, 8}


def test_files_are_short():
    assert statistics.median(len(path.read_text().splitlines()) for path in FILES) <= 150


def allowed(text: str) -> float:
    """Ten lines, which a file of any length needs, and a tenth of its own."""
    return 10 + 0.1 * len(text.splitlines())


def test_forwarding_by_name_is_more_than_allowed():
    """The rule refuses a wrapper: eight parameters in a signature of their own, and once more in a call."""
    names = [f"own{i}" for i in range(8)]
    signature = "".join(f"    {n},\n" for n in names)
    handed = "".join(f"        {n}={n},\n" for n in names)
    text = f"import os\n\n\ndef f(\n{signature}):\n    return g(\n{handed}    )\n"
    assert len(overhead(text)) > allowed(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_little_is_imports_signatures_and_forwarding(path):
    text = path.read_text()
    assert len(overhead(text)) <= allowed(text), "say less, or hand the parameters on as one object (a preset does)"


def test_at_most_an_eighth_of_all_files_is_imports_signatures_and_forwarding():
    texts = [path.read_text() for path in FILES]
    share = sum(len(overhead(text)) for text in texts) / sum(len(text.splitlines()) for text in texts)
    assert share <= 0.12, share
