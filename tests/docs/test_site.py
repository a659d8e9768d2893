"""The documentation site builds without network or complaint, every page is whole, and every code block runs."""

import ast
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.plans.catalogue import ALGORITHMS
from tests.browser.chromium import BEYOND, need_browser, open_browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {"protocol.md": "tests/deploy/silo/test_documents.py", "deployment.md": "tests/docs/test_deployment.py"}
PAGES = sorted(p for p in [*DOCS.glob("*.md"), *(DOCS / "algorithms").glob("*.md")] if p.name not in ELSEWHERE)
CHEAP = ("--set", "run.seeds=1", "--set", "run.alone=false", "--set", "algorithm.num_rounds=4")
PARSED = {"audit": "tests/audit/test_study.py runs audits"}
RUNS, READS = {"python", "shell"}, {"toml", "text"}


def blocks(path: Path) -> list[tuple[str, str]]:
    return re.findall(
        r"^```([a-z]*)[^\n]*\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_code_block_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {"__name__": path.stem}
    for language, text in blocks(path):
        assert language in RUNS | READS, f"{path.name}: a block of {language!r} is neither run nor marked as text"
        if language == "python":
            exec(compile(text, path.name, "exec"), scope)
        if language == "shell":
            for line in text.replace("\\\n", " ").splitlines():
                run_line(line)


def run_line(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True) or ["tacit"]
    assert program == "tacit", f"{line}: only tacit commands are run; mark others as text"
    if arguments[:1] and arguments[0] in PARSED:
        command = get_command(app).commands[arguments[0]]
        command.make_parser(click.Context(command)).parse_args(arguments[1:])
        return
    # A run is made short; what is typed stays what is read.
    done = CliRunner().invoke(app, [*arguments, *(CHEAP if arguments[:1] == ["run"] else ())])
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards").mkdir()
    for place, name in enumerate(("bergen", "bodo", "narvik", "oslo")):
        rows = [f"{20 + (7 * i + place) % 60},{'fm'[i % 2]},{('no', 'yes')[(i + place) // 3 % 2]}" for i in range(40)]
        (tmp_path / "wards" / f"{name}.csv").write_text("\n".join(["age,sex,ill", *rows]) + "\n")
    text = "\n".join(text for language, text in blocks(ROOT / "README.md") if language == "")
    lines = [line for line in text.splitlines() if line.startswith("tacit ")]
    assert len(lines) >= 3
    for line in lines:
        run_line(line)


def test_every_algorithm_has_one_page_with_equation_theorem_assumptions_and_study():
    found = {}
    for path in (DOCS / "algorithms").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        [names] = re.findall(r"<!-- facts: (.+) -->", text)
        for part in ("**Equation.**", "**Theorem", "**Assumes**", "**Studies.**", "$$"):
            assert part in text, f"{path.name} lacks {part}"
        assert f"algorithms/{path.name}" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "nav lacks a line"
        for name in names.split(", "):
            assert name not in found
            found[name] = path.name
    assert set(found) == set(ALGORITHMS), "each algorithm stands in the facts line of one page"


def test_the_pictures_are_those_of_the_code():
    made = runpy.run_path(str(DOCS / "site" / "pictures.py"))["pictures"]()
    assert {path.stem for path in (DOCS / "pictures").glob("*.svg")} == set(made)
    for name, svg in made.items():
        stored = (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
        assert stored == svg, f"{name}: make it again with python docs/site/pictures.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **dead})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?([^\"\s>]+)", text)
        fetched += re.findall(
            r"<link[^>]+rel=\"?(?:stylesheet|icon|preload|preconnect)\"?[^>]*href=\"?([^\"\s>]+)", text
        )
        fetched += re.findall(
            r"<link[^>]+href=\"?([^\"\s>]+)\"?[^>]*rel=\"?(?:stylesheet|icon|preload|preconnect)", text
        )
        assert not [url for url in fetched if "//" in url], page


def test_equations_are_mathml_and_nothing_is_left_over(site):
    text = (site / "algorithms" / "prox-spider.html").read_text(encoding="utf-8")
    assert text.count("<math") >= 6
    for page in [*(site / "algorithms").glob("*.html"), site / "accounting.html", site / "trust.html"]:
        text = page.read_text(encoding="utf-8")
        assert "$$" not in text
        assert not re.search(
            r"EQUATION\d|\\frac|\\nabla|<merror", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        )
        assert "<!-- facts" not in text


def test_the_api_and_the_results_are_there(site):
    api = (site / "api.html").read_text(encoding="utf-8")
    for name in (*tacit.__all__, "Model", "Loss", "cnn", "l1", "group_lasso", "l2_ball", "regulariser", "recipe"):
        assert name == "__version__" or f">{name}<" in api, name
    assert (site / "results" / "convex-rates" / "figure.png").is_file()
    assert "tacit reproduce" in (site / "results" / "index.html").read_text(encoding="utf-8")


def test_signatures_are_read_by_people():
    page = runpy.run_path(str(DOCS / "site" / "hooks.py"))["api_page"]()
    shown = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(shown) > 60
    for text in shown:
        # Neither an address in memory nor a line that a type was cut at; it parses as it stands.
        assert not re.search(r" at 0x|<", text), text
        body = "..." if text.startswith("def") else None
        ast.parse(f"{text.rstrip()}: {body}" if body else text.replace("class ", "def ", 1).rstrip() + ": ...")
    assert "channel: Channel = 'direct',\n" in page
    assert "activation: Callable[[Array], Array] = relu" in page


def test_pages_render_in_a_browser_by_themselves(site, tmp_path):
    with open_browser(need_browser(), tmp_path / "profile") as page:
        names = (
            "index.html",
            "accounting.html",
            "algorithms/sgda.html",
            "results/index.html",
            "api.html",
            "using.html",
        )
        for name, width in itertools.product(names, (1280, 390)):
            page.look(site / name, width=width, phone=width < 500)
            assert page.complaints() == [], name
            assert [url for url in page.requests() if not url.startswith(("file:", "data:"))] == []
            assert page.ask("document.documentElement.scrollWidth") <= width, name
            assert page.ask("[...document.images].every(image => image.naturalWidth > 0)"), name
            assert page.ask(BEYOND) == [], (name, width)
