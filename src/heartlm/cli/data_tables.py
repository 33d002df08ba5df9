"""How `heartlm data` prints: tables on a terminal, plain aligned lines into a pipe."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from heartlm.ecg.catalogue import DatabaseInfo

if TYPE_CHECKING:
    from heartlm.ecg.verify import Finding

_COLUMNS = ("name", "recordings", "hours", "Hz", "leads", "labels", "size", "licence", "title")
_RIGHT = {"recordings", "hours", "size"}
_NOT_RECORDED = "not recorded"
_WIDTH_WITH_TITLES = 140


def print_catalogue(databases: Sequence[DatabaseInfo]) -> None:
    """Print one line a database."""
    rows = [_row(info) for info in databases]
    if sys.stdout.isatty():
        _print_table(rows)
        print("heartlm data list NAME  tells more of one, and what to cite;  -  not recorded")
        return
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


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


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = _COLUMNS if console.width >= _WIDTH_WITH_TITLES else _COLUMNS[:-1]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            style="bold" if name == "name" else None,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row[: len(columns)])
    console.print(table)
