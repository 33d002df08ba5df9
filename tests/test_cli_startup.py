"""Who imports what, and when: `--help` stays light, the early rooms work without torch, imports run one way."""

from __future__ import annotations

import ast
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import heartlm
from heartlm.cli.main import COMMANDS
from heartlm.cli.registry import registered

PACKAGE = Path(heartlm.__file__).parent
HEAVY = ("torch", "matplotlib", "wfdb", "scipy", "pyarrow", "sklearn", "pandas")

ARCHITECTURE = Path(__file__).parent.parent / "ARCHITECTURE.md"
ROWS = re.findall(r"^\| `([\w/]+)/` \|.*\| (.*) \|$", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
MAY_IMPORT: dict[str, set[str]] = {
    room.removeprefix("extensions/"): set(re.findall(r"`(\w+)`", allowed)) for room, allowed in ROWS
}
"""Rooms and the rooms they may import, as ARCHITECTURE.md lists them."""
EXTENSIONS = [room.removeprefix("extensions/") for room, _ in ROWS if room.startswith("extensions/")]
"""Rooms that the core does not name."""
GROUND = ("storage", "system")
"""Every room may import them."""
FRONT = ("api", "cli")
"""May import all rooms of the core; of the rooms only extensions import them."""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORTED_BY_COMMANDS = f"""
import sys
from contextlib import suppress
from heartlm.cli.main import main
for words in sys.argv[1:]:
    with suppress(SystemExit):
        main(words.split())
    if heavy := [name for name in {HEAVY!r} if name in sys.modules]:
        sys.exit(words + " imports " + ", ".join(heavy))
    print("answered: " + words)
"""


def test_answering_imports_nothing_heavy():
    answers = ["--help", *(f"{command} --help" for command in COMMANDS), "data list"]
    answers += [f"data {name} --help" for name in ("list", "simulate", "download", "verify", "show")]
    lines = run(IMPORTED_BY_COMMANDS, *answers).splitlines()
    assert [line for line in lines if line.startswith("answered: ")] == [f"answered: {words}" for words in answers]


TORCH = re.search(r"^Torch is imported by (.*?), which train or export", ARCHITECTURE.read_text("utf-8"), re.M | re.S)
assert TORCH is not None
WITH_TORCH = {name.removesuffix(".py").replace("/", ".") for name in re.findall(r"`([\w/.]+)`", TORCH[1])}
"""Rooms and modules of the core that may import torch when they are imported, as ARCHITECTURE.md lists them."""

WITHOUT_TORCH = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is blocked", name="torch")

sys.meta_path.insert(0, Blocker())
"""


def may_have_torch(module: str) -> bool:
    inside = module.removeprefix("heartlm.")
    return inside in WITH_TORCH or inside.partition(".")[0] in WITH_TORCH


def test_all_but_training_and_export_is_imported_without_torch() -> None:
    core = [
        module
        for module, _ in modules()
        if not may_have_torch(module) and not module.startswith(("heartlm.extensions", "heartlm.__main__"))
    ]
    assert len(core) > 250
    run(WITHOUT_TORCH + "for name in sys.argv[1:]: importlib.import_module(name)", *core)


def test_rooms_that_import_torch_are_those_of_the_plan() -> None:
    importing = {
        module.removeprefix("heartlm.")
        for module, path in modules()
        for node in parsed(path).body  # not inside of functions
        for name in ([each.name for each in getattr(node, "names", [])] + [getattr(node, "module", None) or ""])
        if isinstance(node, ast.Import | ast.ImportFrom) and name.partition(".")[0] == "torch"
    }
    core = {name for name in importing if not name.startswith("extensions.")}
    assert {name if name in WITH_TORCH else name.partition(".")[0] for name in core} == WITH_TORCH


MODULE = re.compile(r"heartlm(\.\w+)+")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(("heartlm", *parts)).removesuffix(".__init__"), path


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_by(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module of heartlm that `path` imports, anywhere in the file, or names in a text, with the line."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{source}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            yield node.value, node.lineno


def room_of(module: str) -> str | None:
    """The room a module lies in, None for the modules next to the rooms and for other packages."""
    first, _, rest = module.partition(".")
    room = rest.removeprefix("extensions.").partition(".")[0]
    return room if first == "heartlm" and (room in MAY_IMPORT or room in FRONT) else None


def test_imports_run_one_way():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {room} imports {target}"
        for module, path in modules()
        if module not in ("heartlm", "heartlm.__main__")
        for room in [room_of(module)]
        for target, line in imported_by(module, path)
        if (other := room_of(target)) not in (None, room) and other not in may_import(room)
    ]
    assert not wrong, "\n".join(wrong)


def may_import(room: str | None) -> set[str]:
    return {*MAY_IMPORT, *FRONT} - set(EXTENSIONS) if room in FRONT else {*MAY_IMPORT.get(room or "", set()), *GROUND}


def test_the_core_does_not_name_an_extension() -> None:
    """Nor do its tests. What a command of an extension is called, and where it is, only entry points say."""
    commands = registered(COMMANDS).commands
    assert EXTENSIONS and commands
    named = re.compile(rf"extensions[./]({'|'.join(EXTENSIONS)})\b|\bheartlm ({'|'.join(commands)})\b")
    package, tests = PACKAGE / "extensions", Path(__file__).parent / "extensions"
    found = [
        f"{path}: {names[0]}"
        for folder, extensions in ((PACKAGE, package), (tests.parent, tests))
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".c", ".h", ".html") and extensions not in path.parents
        if (names := named.search(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_every_room_has_its_rules():
    folders = [*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("extensions/*/__init__.py")]
    assert {path.parent.name for path in folders} == {*MAY_IMPORT, "cli", "extensions"}


def test_a_room_may_import_only_rooms_above_it_in_the_table_so_there_are_no_cycles():
    rooms = list(MAY_IMPORT)
    assert rooms[-len(EXTENSIONS) :] == EXTENSIONS
    for place, room in enumerate(rooms):
        assert MAY_IMPORT[room] <= {*rooms[:place], *(["cli"] if room in EXTENSIONS else [])}, room


def test_no_two_modules_import_each_other() -> None:
    """Deferred imports and those for type checking count too; `heartlm` itself, for its version, does not."""
    known = {module for module, _ in modules()} - {"heartlm"}
    needs = {
        module: {
            target if target in known else target.rpartition(".")[0] for target, _ in imported_by(module, path)
        }.intersection(known)
        for module, path in modules()
    }
    for module in needs:
        needs[module].discard(module)
    while leaves := [module for module, targets in needs.items() if not targets & needs.keys()]:
        for module in leaves:
            del needs[module]
    assert not needs, f"modules in circles, or above one: {', '.join(sorted(needs))}"


def test_relative_and_nested_imports_and_names_in_texts_are_seen(tmp_path: Path):
    path = tmp_path / "x.py"
    lines = (
        "from ..cli import main",
        "import heartlm.training.loop",
        "from heartlm import ecg",
        "g('heartlm.report.plots')",
    )
    path.write_text("def f():\n" + "".join(f"    {line}\n" for line in lines))
    seen = {target for target, _ in imported_by("heartlm.ecg.x", path)}
    assert seen == {"heartlm.cli.main", "heartlm.training.loop", "heartlm.ecg", "heartlm.report.plots"}


LEAVES = """
import atexit, os, sys
import torch.distributed as dist
from heartlm.cli.main import run_process
if sys.argv.pop(1) == "failed":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
atexit.register(os.abort)
run_process()
"""


@pytest.mark.parametrize(("rank", "status"), [("failed", 2), ("of several", 2), ("alone", -signal.SIGABRT)])
def test_a_rank_takes_nothing_apart_that_could_abort(rank: str, status: int) -> None:
    """What runs as Python ends stands for gloo's destructors; a rank whose group is or was there leaves before it."""
    command = [sys.executable, "-c", LEAVES, rank, "pretrain", "--corpus", "nowhere"]
    environment = os.environ | ({"WORLD_SIZE": "2"} if rank == "of several" else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == status
    assert done.stderr.startswith("heartlm pretrain: ")
