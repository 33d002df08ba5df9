"""`heartlm data`: list, download, simulate, convert, index, verify and draw ECG databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import existing, parse
from heartlm.cli.subcommands import run_subcommand
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.system.engine import PartOptions


@dataclass(frozen=True)
class ListOptions:
    """Options of `heartlm data list`.

    Attributes:
        name: database to describe in full, with its citation; by default all databases are listed.
    """

    name: str | None = None


@dataclass(frozen=True)
class FormatsOptions:
    """`heartlm data formats` has no options."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(SimulationConfig):
    """Options of `heartlm data simulate`.

    Attributes:
        folder: output folder; it must be empty or not exist.
        replace: replace a database that exists in `folder`.
    """

    folder: Path
    replace: bool = False


@dataclass(frozen=True)
class VerifyOptions(PartOptions):
    """Options of `heartlm data verify`.

    Attributes:
        folder: folder of a database.
        out: folder in which to keep what is found in each recording: the same command again reads files whose size or
            time has changed since. Parts need it. Without it, and with a new folder, all files are read.
    """

    folder: Path
    out: Path | None = None


def run(argv: Sequence[str]) -> int:
    """Run one subcommand of `heartlm data` and return the exit status."""
    return run_subcommand("data", SUBCOMMANDS, argv)


def run_list(argv: Sequence[str]) -> int:
    """List the databases that heartlm can download: size, sampling rate, leads, labels, licence and citation.

    Examples:
        heartlm data list
        heartlm data list mitdb
    """
    from heartlm.cli.data_tables import print_catalogue, print_database
    from heartlm.databases.catalogue import CATALOGUE, find

    options = parse(ListOptions, argv, "data list", run_list, positionals=["name"])
    if options.name is None:
        print_catalogue(list(CATALOGUE.values()))
    else:
        print_database(find(options.name))
    return 0


def run_formats(argv: Sequence[str]) -> int:
    """List the formats of recordings that heartlm reads, and what to install for those that need a package.

    Examples:
        heartlm data formats
    """
    parse(FormatsOptions, argv, "data formats", run_formats)
    from heartlm.cli.data_tables import print_formats

    print_formats()
    return 0


def run_simulate(argv: Sequence[str]) -> int:
    """Simulate a database of patients: WFDB records with beats, rhythms and patients annotated.

    Examples:
        heartlm data simulate data/simulated
        heartlm data simulate data/small --patients 4 --minutes 2 --seed 7
        heartlm data simulate data/clean --leads "[II, V1, V5]" --noise 0 --rate-hz 360
    """
    options = parse(SimulateOptions, argv, "data simulate", run_simulate, positionals=["folder"])
    from heartlm.simulate.write import simulate_database

    _check_unused(options.folder, options.replace)
    simulate_database(options.folder, options)
    print(f"{options.folder}: {options.patients} simulated patients, {options.minutes:g} minutes each recording")
    print(f"look at one:  heartlm data show {options.folder}/s0001 --start 0 --stop 10")
    return 0


def _check_unused(folder: Path, replace: bool) -> None:
    """Raise a HeartlmError if `folder` holds something, except a database if `replace`."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / "database.json").is_file():
        raise HeartlmError(f"{folder} exists and is no simulated database: choose another name or remove it first")
    if not replace:
        raise HeartlmError(f"{folder} holds a database already: choose another name or give --replace")


def run_verify(argv: Sequence[str]) -> int:
    """Check every file of a database: checksums, headers, signals and annotations.

    The exit status is 1 if an error or a warning is found. After parts (--part 3/64), which may run at the same time on
    machines that share the folders, the same command without --part joins them.

    Examples:
        heartlm data verify data/mitdb
        heartlm data verify /archive --out checks --part 3/64
    """
    options = parse(VerifyOptions, argv, "data verify", run_verify, positionals=["folder"])
    from heartlm.cli.data_tables import print_findings
    from heartlm.databases.verify import verify_database

    findings = verify_database(existing(options.folder, "folder"), options, options.out)
    print_findings(options.folder if options.part is None else f"{options.folder}: part {options.part}", findings)
    return 1 if findings else 0


SUBCOMMANDS = {
    "list": ("heartlm.cli.data:run_list", "databases of the catalogue: size, rate, leads, labels, licence, citation"),
    "formats": ("heartlm.cli.data:run_formats", "formats of recordings, and what to install for which"),
    "convert": (
        "heartlm.cli.data_convert:run",
        "write recordings as WFDB, EDF+, ISHNE, Parquet; drop names and dates",
    ),
    "index": (
        "heartlm.cli.data_index:run",
        "write the headers of all recordings into one Parquet file, to choose from",
    ),
    "simulate": ("heartlm.cli.data:run_simulate", "write a database of simulated patients"),
    "download": ("heartlm.cli.data_download:run", "fetch a database from PhysioNet: resumable, parallel, verified"),
    "verify": ("heartlm.cli.data:run_verify", "say what is wrong with which file of a database"),
    "show": ("heartlm.cli.data_show:run", "draw a recording with its beats and rhythms"),
}
