"""What an archive of 500 GB takes on nodes of a cluster, computed from what some of its recordings take here.

    python -m benchmarks.archive_plan --ptb-xl FOLDER --work FOLDER

Recordings are those of PTB-XL, ten seconds with 12 leads at 500 Hz; 500 GB of them are 4.2 million recordings with
about 50 million beats. Each command runs on a number of recordings and on four times as many, with two processes. What
the second takes more, divided by the recordings that it has more, is the processor time of a recording: for the client,
which works alone, and for the workers, who share the rest. Hours are computed: the client's, and the workers' divided
by 64 cores a node, each as fast as one here. The bytes that workers then read per second tell whether storage limits.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.archive import in_training, ptb_xl_records
from lab.measure import Spread, Table
from lab.output import write_results
from lab.places import options

ARCHIVE_BYTES, NODE_CORES, NODES = 500e9, 64, (1, 16, 64)
COMMANDS = {
    "data index": ["data", "index"],
    "tokenize, all leads": ["tokenize", "--training-leads", "all", "--shards", "4"],
    "delineate to tables": ["delineate", "--tables", "parquet"],
    "analyze to tables": ["analyze", "--tables", "parquet"],
}
CLIENT = """
import resource, sys
from heartlm.cli.main import main
status = main(sys.argv[1:])
own = resource.getrusage(resource.RUSAGE_SELF)
workers = resource.getrusage(resource.RUSAGE_CHILDREN)
print(status, own.ru_utime + own.ru_stime, workers.ru_utime + workers.ru_stime)
"""


def processor_s(words: list[str]) -> tuple[float, float]:
    """Processor time of a command: of its process, and of those that it started."""
    command = [sys.executable, "-c", CLIENT, *words]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert found[-3] in ("0", "None"), found
    return float(found[-2]), float(found[-1])


def main() -> None:
    """Measure and write the tables."""
    given = options(__doc__, "ptb-xl", "work", records=150, rounds=3).parse_args()
    work: Path = given.work / "archive-plan"
    few, many = given.records, 4 * given.records
    headers = ptb_xl_records(given.ptb_xl, many)
    folders = {number: in_training(headers[:number], work / f"records-{number}") for number in (few, many)}
    size = sum(path.stat().st_size for header in headers for path in (header, header.with_suffix(".dat"))) / many
    num_recordings = ARCHIVE_BYTES / size

    fitted, out = work / "fitted", work / "out"
    shutil.rmtree(fitted, ignore_errors=True)
    processor_s(["tokenize", str(folders[few]), "--tokenizer", "beat", "--out", str(fitted)])

    def taken(name: str, number: int) -> tuple[float, float]:
        shutil.rmtree(out, ignore_errors=True)
        words = [*COMMANDS[name], str(folders[number]), "--out", str(out)]
        if name == "data index":
            return processor_s([*words[:-1], f"{out}.parquet"])
        if name.startswith("tokenize"):
            words += ["--tokenizer-from", str(fitted)]
        return processor_s([*words, "--processes", "2"])

    measured = Table(
        f"Processor time of a recording, from {few} and {many} recordings (median of {given.rounds})",
        ("command", "client, ms", "workers, ms"),
    )
    computed = Table(
        f"Computed: {num_recordings / 1e6:.2f} million recordings, 500 GB, nodes of {NODE_CORES} cores",
        ("command", "nodes", "hours", "of it the client, hours", "GB/s that the workers read"),
    )
    for name in COMMANDS:
        client, workers = list[float](), list[float]()
        for _ in range(given.rounds):
            of_few, of_many = taken(name, few), taken(name, many)
            client.append((of_many[0] - of_few[0]) / (many - few))
            workers.append((of_many[1] - of_few[1]) / (many - few))
        client_ms, workers_ms = Spread.of(client).times(1e3), Spread.of(workers).times(1e3)
        print(name, client_ms, workers_ms)
        measured.add(name, client_ms, workers_ms)
        alone_s = client_ms.median / 1e3 * num_recordings
        for nodes in (1,) if name == "data index" else NODES:
            shared_s = workers_ms.median / 1e3 * num_recordings / (NODE_CORES * nodes)
            # The client hands out work while workers work, so that the longer of the two counts.
            hours = max(alone_s, shared_s) / 3600
            read = None if name == "data index" else ARCHIVE_BYTES / max(alone_s, shared_s) / 1e9
            computed.add(name, nodes, hours, alone_s / 3600, read)
    write_results("archive-plan", "An archive of 500 GB on a cluster", [measured.close(), computed.close()])


if __name__ == "__main__":
    main()
