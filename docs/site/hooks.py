"""What the documentation site adds to its pages: equations as MathML, facts from the catalogue, results and the API.

Everything happens when the site is built, so that no reader's browser fetches anything from elsewhere.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from tacit.plans.catalogue import ALGORITHMS

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"(^```.*?^```[^\n]*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\w)", re.DOTALL)
_FACTS = re.compile(r"<!-- facts: ([a-z0-9, -]+) -->")
_API = {
    "tacit": (
        "fit",
        "Fit",
        "Budget",
        "Problem",
        "Terms",
        "Recipe",
        "load_model",
        "TrainedModel",
        "PrivateClassifier",
        "PrivateRegressor",
        "register_algorithm",
        "register_loss",
        "register_model",
    ),
    "tacit.models": (
        "Encoded",
        "export_onnx",
        "from_torch",
        "to_torch",
        "torch_model",
        "from_flax",
        "flax_model",
        "from_equinox",
        "equinox_model",
        "lora",
        "with_weights",
        "backbone",
    ),
    "tacit.plans.catalogue": ("find", "paper_noise"),
    "tacit.data": ("load",),
    "tacit.objectives": (
        "Objective",
        "Model",
        "Loss",
        "linear",
        "mlp",
        "cnn",
        "logistic",
        "softmax",
        "squared",
        "hinge",
        "absolute",
        "pinball",
        "huber",
        "poisson",
        "gradient_norms",
    ),
    "tacit.geometry": (
        "regulariser",
        "Regulariser",
        "zero",
        "l1",
        "squared_l2",
        "elastic_net",
        "group_lasso",
        "with_squared_l2",
        "box",
        "l1_ball",
        "l2_ball",
        "frobenius_ball",
        "simplex",
        "add",
    ),
    "tacit.algorithm": ("recipe", "Algorithm", "Round", "Silo", "Server", "Release"),
    "tacit.privacy": ("Event", "price", "calibrate", "spent", "risk_of_price", "risk_of", "risk", "user_level"),
    "tacit.plans.spec": ("load_study", "parse_study", "Study"),
    "tacit.studies.run": ("prepare", "run", "Result"),
    "tacit.studies.report": ("write_report",),
}


def on_config(config: Any) -> Any:
    """Pages of the navigation that are not written yet are left out."""
    config["nav"] = _there(config["nav"], Path(config["docs_dir"]))
    return config


def _there(nav: list[Any], docs: Path) -> list[Any]:
    kept: list[Any] = []
    for item in nav:
        if isinstance(item, str):
            kept += [item] * _exists(item, docs)
        else:
            [(title, target)] = item.items()
            if isinstance(target, list):
                kept.append({title: _there(target, docs)})
            else:
                kept += [item] * _exists(target, docs)
    return kept


def _exists(page: str, docs: Path) -> bool:
    made = page.startswith("results/") or page in ("api.md", "algorithms/index.md")
    return made or (docs / page).is_file()


def on_files(files: Any, config: Any) -> Any:
    """Add the results as they are committed, and the pages that are made from the code."""
    for path in sorted((ROOT / "results").rglob("*")):
        if path.is_file() and "runs" not in path.relative_to(ROOT).parts:
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config["site_dir"], use_directory_urls=False))
    files.append(File.generated(config, "api.md", content=api_page()))
    files.append(File.generated(config, "algorithms/index.md", content=algorithms_page()))
    return files


_MANY = 7
"""A table of so many columns does not fit beside the navigation."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in facts, and put marks in the place of equations (outside code)."""
    page.meta["equations"] = equations = []

    def mark(found: re.Match[str]) -> str:
        block = found[1] is not None
        made = convert(" ".join((found[1] or found[2]).split()), display="block" if block else "inline")
        # What is too wide for a phone scrolls by itself.
        equations.append(
            f'<span style="display: block; overflow-x: auto; overflow-y: hidden">{made}</span>' if block else made
        )
        return f"EQUATION{len(equations) - 1}E"

    text = _FACTS.sub(lambda found: facts([name.strip() for name in found[1].split(",")]), markdown)
    if page.file.src_uri.startswith("results/"):
        return text
    parts = _FENCE.split(text)
    return "".join(part if i % 2 else _MATH.sub(mark, part) for i, part in enumerate(parts))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Equations in the place of their marks, and tables that fit."""
    equations = page.meta["equations"]
    html = re.sub(r"EQUATION(\d+)E", lambda found: equations[int(found[1])], html)
    return re.sub(r"<table>.*?</table>", lambda found: _headed(found[0]), html, flags=re.DOTALL)


def _headed(table: str) -> str:
    """A table whose cells know the head of their column; one with many columns is shown as lists (tables.css)."""
    heads = [re.sub(r"<[^>]+>", "", head) for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table, flags=re.DOTALL)]

    def row(found: re.Match[str]) -> str:
        names = iter(heads)
        return re.sub(r"<td\b", lambda _: f'<td data-head="{next(names, "").replace(chr(34), "")}"', found[0])

    table = re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)
    return table.replace("<table>", '<table class="listed">', 1) if len(heads) >= _MANY else table


def facts(names: list[str]) -> str:
    """What the catalogue says of some algorithms."""
    rows = ["| name | from | guarantee | assumes |", "| --- | --- | --- | --- |"]
    for name in names:
        entry = ALGORITHMS[name]
        rows.append(f"| `{entry.name}` | {entry.paper} | {entry.guarantee} | {entry.assumes} |")
    calls = "\n".join(call(name) for name in names)
    return "\n".join(rows) + f"\n\n```\n{calls}\n```\n" + letters(names[0])


def call(name: str) -> str:
    """How an algorithm is called in Python: parameters without a default first, then the others with theirs."""
    entry = ALGORITHMS[name]
    parts = [p.name for p in entry.parameters.values() if p.default is p.empty]
    parts += [f"{p.name}={p.default!r}" for p in entry.parameters.values() if p.default is not p.empty]
    start = f"tacit.{entry.recipe.__name__}("
    return textwrap.fill(f"{start}{', '.join(parts)})", 100, subsequent_indent=" " * len(start))


def letters(name: str) -> str:
    """The paper's letters and the names that they have here."""
    cells = [[cell.replace("|", "&#124;") for cell in pair] for pair in ALGORITHMS[name].letters.items()]
    rows = [f"| {letter} | {here} |" for letter, here in cells]
    return "\n".join(["", "| paper | here |", "| --- | --- |", *rows, ""]) if rows else ""


def page_of(name: str) -> str:
    """The page that describes an algorithm."""
    for path in sorted((ROOT / "docs" / "algorithms").glob("*.md")):
        found = _FACTS.search(path.read_text(encoding="utf-8"))
        if found and name in [part.strip() for part in found[1].split(",")]:
            return path.name
    raise LookupError(f"No page under docs/algorithms has facts about {name}.")


def algorithms_page() -> str:
    """Every algorithm of the catalogue with its page."""
    rows = [f"| [`{e.name}`]({page_of(e.name)}) | {e.guarantee} | {e.assumes} |" for e in ALGORITHMS.values()]
    head = "# Algorithms\n\nOne file each, which reads beside its paper. All of them: `tacit algorithms`.\n\n"
    return head + "| name | guarantee | assumes |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def api_page() -> str:
    """Signatures and docstrings of what people import; their examples are run as doctests."""
    parts = ["# API\n\nThe functions and types that people import. Examples in this page are run by the tests.\n"]
    for module, names in _API.items():
        parts.append(f"## {module}\n")
        found = importlib.import_module(module)
        for name in names:
            thing = getattr(found, name)
            parts.append(
                f"### {name}\n\n```python\n{_signature(name, thing)}\n```\n\n{_prose(thing)}{_methods(thing)}\n"
            )
    return "\n".join(parts)


def _signature(name: str, thing: Any) -> str:
    """How it is called: on one line where that fits, else with a line for each parameter."""
    signature = inspect.signature(thing)
    parts = [_parameter(one) for one in signature.parameters.values()]
    stars = [one.kind is inspect.Parameter.KEYWORD_ONLY for one in signature.parameters.values()]
    if True in stars:
        parts.insert(stars.index(True), "*")
    word, ends = ("class", "") if inspect.isclass(thing) else ("def", _returned(signature))
    short = f"{word} {name}({', '.join(parts)}){ends}"
    return short if len(short) < 60 else f"{word} {name}(\n    " + ",\n    ".join(parts) + f",\n){ends}"


def _on_one_line(signature: str) -> str:
    return re.sub(r"\n\s*", " ", signature).replace("( ", "(").replace(", )", ")")


def _returned(signature: inspect.Signature) -> str:
    return "" if signature.return_annotation is signature.empty else f" -> {_typed(signature.return_annotation)}"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    typed = "" if one.annotation is one.empty else f": {_typed(one.annotation)}"
    if one.default is one.empty:
        return f"{stars}{one.name}{typed}"
    shown = repr(one.default)
    if shown.startswith("<"):  # a function by its name, and nothing else that only a machine reads
        shown = getattr(one.default, "__name__", "...")
    return f"{one.name}{typed} = {shown}"


def _typed(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _methods(thing: Any) -> str:
    """The methods of a class that people call, each with the first sentence about it."""
    if not inspect.isclass(thing):
        return ""
    found = [(name, one) for name, one in vars(thing).items() if inspect.isfunction(one) and not name.startswith("_")]
    lines = [f"- `{_on_one_line(_signature(name, one).removeprefix('def '))}`: {_summary(one)}" for name, one in found]
    return "\n\n" + "\n".join(lines) if lines else ""


def _summary(thing: Any) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.replace("``", "`").replace("<", "&lt;")


def _prose(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    plain, marker, examples = text.partition(">>>")
    plain = plain.removesuffix("Examples:\n    ").replace("``", "`").replace("<", "&lt;").rstrip()
    listed = re.sub(r"^    (\w+): ", r"- `\1`: ", plain.replace("Args:\n", "\n"), flags=re.MULTILINE)
    return listed + (f"\n\n```pycon\n>>> {inspect.cleandoc(examples)}\n```" if marker else "")
