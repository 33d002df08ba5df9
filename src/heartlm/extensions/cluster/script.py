"""Batch scripts of runs: resource requests, command, placement, and handling of the exit status.

    header ─► modules ─► placement ─► command ─► srun ─► apptainer ─► torchrun ─► ranks ─► requeue, or the status

The bash of each part is a file in `cluster/fragments`. Values that depend on the allocation are computed when the
script runs, because a requeued job may get another number of nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from heartlm.distributed.ranks import STOPPED_STATUS
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.profile import SiteProfile
from heartlm.extensions.cluster.run_file import IN_PARTS, RANKED, RESUMED, RunFile
from heartlm.extensions.cluster.topology import Topology
from heartlm.extensions.cluster.torchrun import HOSTS
from heartlm.system.progress import hours_minutes_seconds

OTHERS_END_WITHIN_S = 60
"""Time in seconds that the other nodes have to finish their output after one node has ended."""


def fragment(name: str, **values: object) -> list[str]:
    """Return the lines of a file with its placeholders `@ranks@` filled; a value stays on its line."""
    text = (files("heartlm.extensions.cluster") / "fragments" / f"{name}.sh").read_text(encoding="utf-8")
    return [re.sub(r"@(\w+)@", lambda place: str(values[place[1]]), line) for line in text.splitlines()]


def render(
    run: RunFile,
    topology: Topology,
    profile: SiteProfile,
    *,
    name: str,
    logs: Path,
    before: Sequence[str] = (),
    parts: int | None = None,
) -> str:
    """Return the script of one run.

    Args:
        run: run of the script; a training that can be resumed needs `out`.
        topology: requested resources.
        profile: site profile.
        name: job name.
        logs: folder of the job's output; it must exist when the job starts.
        before: bash lines that record the attempt and may requeue the job.
        parts: number of jobs of an array, each of which does one part; None for a job that does all.

    Raises:
        HeartlmError: a value has a control character: a line end in a comment or `#SBATCH` line would start a command.
    """
    ranks, stops = run.command in RANKED, run.command in RESUMED or bool(before)
    python = shlex.quote(profile.python)
    launcher = fragment("torchrun", python=python) if ranks else ["# How.", f"launcher=({python} -m heartlm)"]
    head = [
        "#!/bin/bash -l" if profile.modules else "#!/bin/bash",
        f"# heartlm {run.command} on {topology.words}, profile {profile.name}.",
        *header(topology, profile, name=name, logs=logs, stops=stops, parts=parts),
    ]
    blocks = [
        [*(f"module load {shlex.quote(module)}" for module in profile.modules), "set -euo pipefail"],
        _where(topology, profile, ranks=ranks),
        [*before, *_command_of(run, parts)],
        [*launcher, *_container(topology, profile)],
        _started(run, topology, profile)
        if stops
        else ['exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" "${launcher[@]}" "${command[@]}"'],
    ]
    return "\n".join(map(one_line, [*head, *(line for block in blocks for line in ("", *block))])) + "\n"


# Control characters, Unicode line ends, and surrogates of file names that are not UTF-8.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """Return `text` unchanged.

    Raises:
        HeartlmError: it has a control character.
    """
    if (match := _CONTROL.search(text)) is not None:
        around = text[max(0, match.start() - 60) : match.start() + 20]
        raise HeartlmError(
            f"{around!r} found where a script is written, no control character expected: take {match[0]!r} out of the "
            "name, path, option or field of the profile that it comes from"
        )
    return text


def header(
    topology: Topology, profile: SiteProfile, *, name: str, logs: Path, stops: bool = True, parts: int | None = None
) -> list[str]:
    """Return the `#SBATCH` lines; arguments as in `render`."""
    options = [_quoted(f"--job-name={name}"), f"--nodes={topology.nodes}", "--ntasks-per-node=1"]
    if topology.gpus_per_node:
        options.append(profile.gpu_option.replace("{gpus}", str(topology.gpus_per_node)))
    options += [f"--cpus-per-task={topology.cpus_per_task}", f"--time={hours_minutes_seconds(topology.time_s)}"]
    charged = {key: getattr(profile, key) for key in ("account", "partition", "qos")}
    options += [_quoted(f"--{key}={value}") for key, value in charged.items() if value]
    if stops:
        # B: the script alone gets the signal, and passes it on; a job that is queued again continues its output file.
        options += [f"--signal=B:USR1@{_lead_s(topology, profile)}", "--requeue", "--open-mode=append"]
    options += [f"--array=1-{parts}"] if parts else []
    options += [_quoted(f"--output={logs / name}-{'%A_%a' if parts else '%j'}.out"), *profile.header]
    return [f"#SBATCH {option}" for option in options]


def _quoted(option: str) -> str:
    """Quote an option so that sbatch reads it as one word: sbatch splits at blanks and ends lines at #."""
    if re.search(r"""[\s"'\\#]""", option) is None:
        return option
    return '"' + re.sub(r"""(["\\])""", r"\\\1", option) + '"'


def _lead_s(topology: Topology, profile: SiteProfile) -> int:
    """Return how many seconds before the time limit ranks are asked to stop, at most a quarter of the limit."""
    return min(profile.signal_before_s, max(1, topology.time_s // 4))


def _command_of(run: RunFile, parts: int | None) -> list[str]:
    """Return lines that set `command`, the arguments of heartlm; a started training is resumed."""
    words = [shlex.quote(word) for word in run.argv()]
    if run.command in IN_PARTS:
        processes = run.fields.get("processes")
        most = "$cpus" if processes is None else f"$((cpus < {int(processes)} ? cpus : {int(processes)}))"
        words = [word for word in words if not word.startswith("--processes=")] + [f'"--processes={most}"']
        words += [f'"--part=$SLURM_ARRAY_TASK_ID/{parts}"'] if parts else []
    resume = [f"run_folder={shlex.quote(str(run.out))}", *fragment("resume")] if run.is_training else []
    return ["# What to run.", "command=(", *(f"    {word}" for word in words), ")", *resume]


def _where(topology: Topology, profile: SiteProfile, *, ranks: bool) -> list[str]:
    """Return lines that set `cpus`, `nodes` and, for many ranks, `ranks` and the rendezvous."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()]
    if not ranks:
        return [*fragment("nodes"), "export OMP_NUM_THREADS=$cpus", *exports]
    return [
        *fragment("nodes"),
        *fragment("meeting_point", ranks=topology.ranks_per_node),
        "export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))",
        *(["export NCCL_DEBUG=WARN"] if topology.gpus_per_node else []),
        *exports,
        f'export {HOSTS}="${{hosts[*]}}"',
        'echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"',
    ]


def _container(topology: Topology, profile: SiteProfile) -> list[str]:
    if profile.container == "none":
        return []
    assert profile.image is not None, "the profile was checked"
    binds = ['"$PWD"', *map(shlex.quote, profile.binds)]
    lines = ["launcher=(", f'    apptainer exec{" --nv" if topology.gpus_per_node else ""} --pwd "$PWD"']
    lines += [f"    --bind {folder}" for folder in binds]
    return [*lines, f"    {shlex.quote(profile.image)}", '    "${launcher[@]}"', ")"]


def _started(run: RunFile, topology: Topology, profile: SiteProfile) -> list[str]:
    """Return lines that start the ranks, ask them to stop before the time limit, and requeue the job then."""
    lead, others_s = _lead_s(topology, profile), OTHERS_END_WITHIN_S
    start = fragment("start", lead_s=lead, stopped=STOPPED_STATUS, others_s=others_s)
    complete = ["((status != 1)) || status=0 # recordings were left out, but the corpus is complete"]
    complete = complete if run.is_success(1) else []
    return [*start, *fragment("wait"), *complete, *fragment("requeue", stopped=STOPPED_STATUS), 'exit "$status"']
