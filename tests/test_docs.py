"""The code blocks of README.md, the quick start, the tutorials and the notebooks run, and the site builds."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heartlm.cli.main import main
from heartlm.databases.database import open_database

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "docs/quickstart.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FENCED = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.+\n)+", re.MULTILINE)
NEEDS_MORE_THAN_A_FOLDER = ("pip install ", "make ", "heartlm data list", "heartlm data download ")

SMALLER = [
    (r"--patients \d+", "--patients 5"),
    (r"--minutes \d+", "--minutes 1"),
    (r"\bsteps([ :]+)\d+", r"steps\g<1>3"),
    (r"--checkpoint-every \d+", "--checkpoint-every 2"),
    (r"rounds: \d+", "rounds: 2"),
    (r"depth([ :]+)\d+", r"depth\g<1>1"),
]
"""What makes a document's commands quick and leaves them the same otherwise."""


def smaller(text: str) -> str:
    for pattern, replacement in SMALLER:
        text = re.sub(pattern, replacement, text)
    return text


def shell(block: str) -> None:
    """Run the commands of a block: those of heartlm in this process, which has imported everything, others by bash."""
    for line in smaller(block).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["heartlm"] and "--local" not in words:
            assert main(words[1:]) == 0, line
        elif words:  # a command with --local replaces its process
            here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            command, environment = ["bash", "-c", line], os.environ | {"PATH": here}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def run(document: Path) -> int:
    """Run the blocks of a document one after the other in the current folder, and return how many there were."""
    names: dict[str, Any] = {}
    blocks = FENCED.findall(document.read_text(encoding="utf-8"))
    for language, title, block in blocks:
        if title:
            Path(title).write_text(smaller(block), encoding="utf-8")
        elif language == "sh":
            shell(block)
        elif language == "python":
            exec(compile(block, str(document), "exec"), names)
        elif language == "json":
            Path("database.json").write_text(json.dumps(json.loads(block)), encoding="utf-8")
            for record in json.loads(block)["patients"]:
                Path(f"{record}.hea").write_text(f"{record} 0 250\n")
            assert open_database(Path()).record_ids
        else:
            raise AssertionError(f"{document.name}: a block of {language!r}; sh, python or json expected, or a title")
    return len(blocks)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_block_runs(document: Path, folder: Path):
    assert run(document) or document.stem == "index"


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_run(notebook: Path, folder: Path):
    names: dict[str, Any] = {}
    num_pictures = 0
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            for line in (source := "".join(cell["source"])).splitlines():
                if line.startswith("!"):
                    shell(line[1:])
            code = ast.parse(smaller(re.sub(r"^[!%].*$", "", source, flags=re.MULTILINE)))
            last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
            exec(compile(code, str(notebook), "exec"), names)
            if last is not None:  # what the cell displays
                value = eval(compile(ast.Expression(last.value), str(notebook), "eval"), names)
                displays = [getattr(value, each, str)() for each in ("_repr_html_", "_repr_svg_")]
                num_pictures += any("<svg" in each or "image/svg" in each for each in displays)
    assert num_pictures, "a notebook shows recordings, findings or scores"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_only_commands_that_need_a_network_or_an_environment_are_not_run(document: Path):
    prose = FENCED.sub("", document.read_text(encoding="utf-8"))
    lines = [line.strip() for block in INDENTED.findall(prose) for line in block.splitlines()]
    assert not [line for line in lines if not line.startswith(NEEDS_MORE_THAN_A_FOLDER)]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path):
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "reference.html").is_file()
    # The search works from a folder: its index is a script, and nothing is asked of a server.
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'src="assets/iframe-worker.js"' in home and not re.search(r'(src|rel="stylesheet" href)="https?:', home)
    assert "HRV_SDNN" in (tmp_path / "search/search_index.js").read_text(encoding="utf-8")


def test_the_readme_fits_on_a_page_and_architecture_too():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 70


RECORD = (
    r"## .+\n\n\*20\d\d-\d\d-\d\d.*\*\n\n\*\*Context\.\*\* .+?\n\n\*\*Decision\.\*\* .+?\n\n\*\*Consequence\.\*\* .+"
)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("[!i]*.md")), ids=lambda path: path.stem)
def test_decisions_have_a_date_a_context_a_decision_and_a_consequence(path: Path):
    _, *records = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert records
    for record in records:
        assert re.fullmatch(RECORD, record.strip(), re.DOTALL), record


@pytest.mark.parametrize("path", sorted((ROOT / "docs/log").glob("[!i]*.md")), ids=lambda path: path.stem)
def test_each_page_of_the_log_opens_with_a_line_per_trial(path: Path):
    text = path.read_text(encoding="utf-8")
    rows = re.findall(r"^\| 20\d\d-\d\d-\d\d \| \[.+?\]\(#(.+?)\) \| .+ \|$", text, flags=re.MULTILINE)
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert rows == [re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading)).lower() for heading in headings]
    entries = re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]
    assert all(re.search(r"20\d\d-\d\d-\d\d.*\*\*Verdict: .+?\*\*", entry, re.DOTALL) for entry in entries)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_each_page_says_first_for_whom_it_is(path: Path):
    assert re.match(r"# .+\n\nFor \w+", path.read_text(encoding="utf-8"))
