"""Result files of a measurement: `results/NAME.md` and `.json`, each renamed into place."""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from heartlm import __version__
from heartlm.extensions.cluster.doctor.hardware import ROOT, processors
from heartlm.storage.atomic import atomic_file
from heartlm.system.cores import cpu_quota
from lab.catalog import sources_of
from lab.measure import BenchTable, cores
from lab.weights import digests_of


def environment() -> dict[str, Any]:
    """What figures are taken on: processor, cores this process may use, GPU if torch has seen one, versions."""
    facts, quota = processors(ROOT), cpu_quota()
    found = {
        "processor": facts["model"],
        "vector": facts["vector_units"],
        "cores": len(cores()),
        "cpu_limit": quota if math.isfinite(quota) else None,
        "gpu": _gpu(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _torch_version(),
        "heartlm": __version__,
    }
    return {name: value for name, value in found.items() if value is not None}


def _torch_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> str | None:
    """Name of the GPU; None without one, or where nothing has needed torch."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def write_results(
    name: str,
    heading: str,
    tables: Sequence[BenchTable],
    more: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write `NAME.md` and `.json`: command, date, sources, environment, and every table with its probes.

    Args:
        name: of the files.
        heading: title of the document.
        tables: those that are not closed yet are closed.
        more: entries of the environment.
        folder: output folder; by default `results` next to the script.
        data: more entries of the JSON file.
    """
    script = Path(sys.argv[0]).resolve()
    folder = folder or script.parent / "results"
    words = ["FOLDER" if word.startswith("/") else word for word in sys.argv[1:]]
    command = "python " + shlex.join(["-m", f"{script.parent.name}.{script.stem}", *words])
    for table in tables:
        if table.probe_after is None:
            table.close()
    about = environment() | dict(more or {})
    told = {"date": min(table.date for table in tables)} | about
    text = [f"# {heading}", "", f"    {command}", "", ", ".join(f"{key} {value}" for key, value in told.items()), ""]
    text += [table.markdown() for table in tables]
    entries = [table.as_json() for table in tables]
    content = {"command": command, "date": told["date"], "sources": sources_of(name), "models": digests_of(name)}
    content |= {"environment": about}
    texts = {
        "json": json.dumps(content | dict(data or {}) | {"tables": entries}, indent=1, default=str) + "\n",
        "md": "\n".join(text),
    }
    for suffix, written in texts.items():
        with atomic_file(folder / f"{name}.{suffix}") as stream:
            stream.write(written)
