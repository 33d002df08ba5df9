"""How `heartlm data` prints: aligned lines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

from heartlm.ecg.catalogue import DatabaseInfo

if TYPE_CHECKING:
    from heartlm.ecg.verify import Finding

_COLUMNS = ("name", "recordings", "hours", "Hz", "leads", "labels", "size", "licence", "title")
_NOT_RECORDED = "not recorded"
_WIDTH_WITH_TITLES = 140


def print_catalogue(databases: Sequence[DatabaseInfo]) -> None:
    """Print one line a database; on a narrow terminal without the titles."""
    narrow = sys.stdout.isatty() and get_terminal_size().columns < _WIDTH_WITH_TITLES
    rows = [row[:-1] if narrow else row for row in (_COLUMNS, *map(_row, databases))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if sys.stdout.isatty():
        print("heartlm data list NAME  tells more of one, and what to cite;  -  not recorded")


def print_database(info: DatabaseInfo) -> None:
    """Print all that the catalogue knows of one database."""
    facts = {
        "title": info.title,
        "version": info.version,
        "recordings": f"{info.num_recordings:,}",
        "patients": _or_not_recorded(info.num_patients),
        "hours": _or_not_recorded(info.hours),
        "size": _size(info.size_mb) or _NOT_RECORDED,
        "sampling rate": " or ".join(f"{rate} Hz" for rate in info.rates_hz),
        "leads": _leads(info) or _NOT_RECORDED,
        "labels": ", ".join(info.labels),
        "licence": info.licence,
        "page": f"https://physionet.org/content/{info.physionet_path}/",
    }
    print(info.name)
    for name, fact in facts.items():
        print(f"  {name:<14}{fact}")
    for extension, content in info.annotators.items():
        print(f"  {f'.{extension}':<14}{content}")
    print("\ncite:")
    for citation in info.citations:
        print(fill(citation, width=110, initial_indent="  ", subsequent_indent="    "))
    print(f"\nfetch it:  heartlm data download {info.name} data/{info.name}")


def print_findings(folder: Path, findings: Sequence[Finding]) -> None:
    """Print what is wrong with which file, and a line that sums up."""
    for finding in findings:
        print(f"{finding.severity}: {finding.file}: {finding.message}")
    counts = Counter(finding.severity for finding in findings)
    faults = ", ".join(f"{counts[severity]} {severity}s" for severity in ("error", "warning") if counts[severity])
    print(f"{folder}: {faults or 'nothing is wrong'}")


def _row(info: DatabaseInfo) -> tuple[str, ...]:
    return (
        info.name,
        f"{info.num_recordings:,}",
        f"{info.hours:,g}" if info.hours is not None else "-",
        "/".join(map(str, info.rates_hz)),
        _leads(info) or "-",
        ", ".join(info.labels),
        _size(info.size_mb) or "-",
        info.licence,
        info.title,
    )


def _leads(info: DatabaseInfo) -> str | None:
    return info.leads if info.signal else "no signal"


def _size(size_mb: float | None) -> str | None:
    return None if size_mb is None else f"{size_mb:,.1f} MB"


def _or_not_recorded(number: float | None) -> str:
    return _NOT_RECORDED if number is None else f"{number:,}"
