"""`heartlm data download`: download a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.errors import require


@dataclass(frozen=True)
class DownloadOptions:
    """Options of `heartlm data download`.

    Attributes:
        name: a database of the catalogue (see `heartlm data list`).
        folder: output folder; files there that are already verified are not downloaded again.
        records: comma-separated names of the recordings to download; by default all.
        workers: number of parallel downloads.
        base_url: base URL of a mirror.
    """

    name: str
    folder: Path
    records: str | None = None
    workers: int = 4
    base_url: str = "https://physionet.org/files/"


def run(argv: Sequence[str]) -> int:
    """Download a database from PhysioNet.

    Every file is checked against its published SHA-256. Run the same command again after an interruption to continue.

    Examples:
        heartlm data download mitdb data/mitdb
        heartlm data download mitdb data/few --records 100,208
        heartlm data download ptb-xl data/ptb-xl --workers 8
    """
    options = parse(DownloadOptions, argv, "data download", run, positionals=["name", "folder"])
    require(options, lambda number: number >= 1, "at least 1", "workers")
    from heartlm.databases.catalogue import find
    from heartlm.databases.download import download_database

    info = find(options.name)
    records = None if options.records is None else [name.strip() for name in options.records.split(",")]
    summary = download_database(
        info.name, options.folder, base_url=options.base_url, workers=options.workers, records=records
    )
    print(
        f"{summary.folder}: {summary.num_fetched} files fetched ({summary.num_bytes / 1e6:,.1f} MB), "
        f"{summary.num_skipped} were there already; every SHA-256 holds"
    )
    print(f"licence: {info.licence}; what to cite:  heartlm data list {info.name}")
    return 0
