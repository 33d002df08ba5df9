"""Tables that `heartlm data` prints."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

from heartlm.cli.score_table import aligned
from heartlm.databases.catalogue import DatabaseInfo
from heartlm.system.progress import plural

if TYPE_CHECKING:
    from heartlm.databases.verify import Finding

_WIDTH_WITH_TITLES = 140


def print_catalogue(databases: Sequence[DatabaseInfo]) -> None:
    """Print one line per database; without titles on a narrow terminal."""
    narrow = sys.stdout.isatty() and get_terminal_size().columns < _WIDTH_WITH_TITLES
    columns = ["recordings", "hours", "Hz", "leads", "labels", "size", "licence", *(() if narrow else ("title",))]
    rows = [["name", *columns]]
    for info in databases:
        facts = _facts(info, "-")
        rows.append([info.name, *(facts[name] for name in columns)])
    for line in aligned(rows, str.ljust):
        print(line.strip())
    if sys.stdout.isatty():
        print("heartlm data list NAME  tells more of one, and what to cite;  -  not recorded")


def print_database(info: DatabaseInfo) -> None:
    """Print the catalogue entry of one database."""
    print(info.name)
    for name, fact in _facts(info, "not recorded").items():
        print(f"  {name:<14}{fact}")
    for extension, content in info.annotators.items():
        print(f"  {f'.{extension}':<14}{content}")
    print("\ncite:")
    for citation in info.citations:
        print(fill(citation, width=110, initial_indent="  ", subsequent_indent="    "))
    print(f"\nfetch it:  heartlm data download {info.name} data/{info.name}")


def print_formats() -> None:
    """Print one line per format: usual endings, the extra that it needs, and whether that is installed."""
    from heartlm.formats.registry import FORMATS, WFDB

    rows = [["format", "usual endings", "extra", "installed"]]
    for form in (WFDB, *FORMATS):
        rows.append([form.name, " ".join(form.endings), form.extra or "-", "no" if form.missing else "yes"])
    for line in aligned(rows, str.ljust):
        print(line.strip())
    extras = sorted({form.extra for form in FORMATS if form.missing})
    if extras:
        print(f"install what is missing:  pip install 'heartlm[{','.join(extras)}]'")
    print("The content of a file decides its format, not its ending. Details: docs/formats.md")


def _facts(info: DatabaseInfo, missing: str) -> dict[str, str]:
    return {
        "title": info.title,
        "version": info.version,
        "recordings": f"{info.num_recordings:,}",
        "patients": missing if info.num_patients is None else f"{info.num_patients:,}",
        "hours": missing if info.hours is None else f"{info.hours:,g}",
        "size": missing if info.size_mb is None else f"{info.size_mb:,.1f} MB",
        "Hz": "/".join(map(str, info.rates_hz)),
        "leads": (info.leads or missing) if info.signal else "no signal",
        "labels": ", ".join(info.labels),
        "licence": info.licence,
        "page": f"https://physionet.org/content/{info.physionet_path}/",
    }


def print_findings(what: Path | str, findings: Sequence[Finding]) -> None:
    """Print each finding with its file, then a summary line of what was checked."""
    for finding in findings:
        print(f"{finding.severity}: {finding.file}: {finding.message}")
    counts = Counter(finding.severity for finding in findings)
    faults = ", ".join(plural(counts[severity], severity) for severity in ("error", "warning") if counts[severity])
    print(f"{what}: {faults or 'nothing is wrong'}")
