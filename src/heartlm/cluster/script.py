"""Batch scripts of runs: resource requests, command, placement, and handling of the exit status.

    header ─► modules ─► command ─► placement ─► srun ─► apptainer ─► torchrun ─► ranks ─► requeue, or the status

Each part is a function that returns lines, so that other modules can compose their own scripts: `what` may be the
run of a file, or a line of a list selected by the array task. Values that depend on the allocation are computed when
the script runs, because a requeued job may get another number of nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from heartlm.cluster.elastic import MAX_RESTARTS, MOST_REQUEUES
from heartlm.cluster.fragment import fragment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.topology import Topology, time_limit
from heartlm.cluster.torchrun import HOSTS, STOPPED_STATUS
from heartlm.errors import HeartlmError

OTHERS_END_WITHIN_S = 60
"""Time in seconds that the other nodes have to finish their output after one node has ended."""


def render(
    run: RunFile, topology: Topology, profile: SiteProfile, *, name: str, logs: Path, python: str = "python"
) -> str:
    """Return the script of one run.

    Args:
        run: run of the script; a training that can be resumed needs `out`.
        topology: requested resources.
        profile: site profile; without a scheduler, the script runs on this machine.
        name: job name.
        logs: folder of the job's output; it must exist when the job starts.
        python: Python interpreter with heartlm; `python` in a container.
    """
    title = f"# heartlm {run.command} on {topology.words}, profile {profile.name}."
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash", title]
    if profile.scheduler == "slurm":
        lines += header(topology, profile, name=name, output=logs / f"{name}-%j.out", stops=run.is_training)
    return text_of([*lines, "", *body(what(run), topology, profile, python=python, ranks=run.is_training)])


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, Unicode line ends, and surrogates of file names that are not UTF-8."""


def text_of(lines: Sequence[str]) -> str:
    """Join the lines of a script. All script text passes through this function.

    Raises:
        HeartlmError: a line has a control character, which can only come from a value in it.
    """
    return "\n".join(map(one_line, lines)) + "\n"


def one_line(text: str) -> str:
    """Return `text` unchanged.

    Raises:
        HeartlmError: it has a control character: a line end in a comment or `#SBATCH` line would start a command.
    """
    if (found := _CONTROL.search(text)) is not None:
        around = text[max(0, found.start() - 60) : found.start() + 20]
        raise HeartlmError(
            f"{around!r} found where a script is written, no control character expected: take {found[0]!r} out of the "
            "name, path, option or field of the profile that it comes from"
        )
    return text


def header(
    topology: Topology,
    profile: SiteProfile,
    *,
    name: str,
    output: Path,
    stops: bool = True,
    further: Sequence[str] = (),
) -> list[str]:
    """Return the `#SBATCH` lines.

    Args:
        topology: requested resources.
        profile: site profile.
        name: job name.
        output: output file; it may contain SLURM's patterns (%j, %A_%a).
        stops: whether the job can be asked to stop and be requeued.
        further: additional options, such as `--array=0-7`.
    """
    options = [_quoted(f"--job-name={name}"), f"--nodes={topology.nodes}", "--ntasks-per-node=1"]
    if topology.gpus_per_node:
        options.append(profile.gpu_option.replace("{gpus}", str(topology.gpus_per_node)))
    options += [f"--cpus-per-task={topology.cpus_per_task}", f"--time={time_limit(topology.time_s)}"]
    charged = {key: getattr(profile, key) for key in ("account", "partition", "qos")}
    options += [_quoted(f"--{key}={value}") for key, value in charged.items() if value]
    if stops:
        options += [f"--signal=B:USR1@{lead_s(topology, profile)}", "--requeue", "--open-mode=append"]
    options += [_quoted(f"--output={output}"), *profile.header, *further]
    return [f"#SBATCH {option}" for option in options]


def _quoted(option: str) -> str:
    """Quote an option so that sbatch reads it as one word: sbatch splits at blanks and ends lines at #."""
    if re.search(r"""[\s"'\\#]""", option) is None:
        return option
    return '"' + re.sub(r"""(["\\])""", r"\\\1", option) + '"'


def lead_s(topology: Topology, profile: SiteProfile) -> int:
    """Return how many seconds before the time limit ranks are asked to stop, at most a quarter of the limit."""
    return min(profile.signal_before_s, max(1, topology.time_s // 4))


def body(
    what: Sequence[str],
    topology: Topology,
    profile: SiteProfile,
    *,
    python: str = "python",
    module: str = "heartlm",
    ranks: bool = True,
) -> list[str]:
    """Return all lines after the header.

    Args:
        what: bash lines that set the array `command`, the arguments of the program; they may use `$cpus`.
        topology: requested resources.
        profile: site profile; without a scheduler, the lines are for this machine.
        python: Python interpreter with heartlm.
        module: Python module of the program.
        ranks: whether torchrun starts many ranks; otherwise the program is one process.
    """
    slurm = profile.scheduler == "slurm"
    parts = [
        [*(f"module load {shlex.quote(module)}" for module in profile.modules), "set -euo pipefail"],
        _where(topology, profile, ranks=ranks),
        list(what),
        [*_launcher(python, module, topology, slurm=slurm, ranks=ranks), *_container(topology, profile)],
        _started(topology, profile, ranks=ranks),
    ]
    return [line for part in parts for line in ("", *part)][1:]


# --- what -------------------------------------------------------------------------------------------------------------


def what(run: RunFile) -> list[str]:
    """Return lines that set `command` for one run; a started training is resumed."""
    words = [shlex.quote(word) for word in run.argv()]
    if run.command == "tokenize":
        processes = run.fields.get("processes")
        most = "$cpus" if processes is None else f"$((cpus < {int(processes)} ? cpus : {int(processes)}))"
        words = [word for word in words if not word.startswith("--processes=")] + [f'"--processes={most}"']
    lines = ["# What to run.", "command=(", *(f"    {word}" for word in words), ")"]
    if not run.is_training:
        return lines
    return [*lines, f"run_folder={shlex.quote(str(run.out))}", *fragment("resume")]


# --- where ------------------------------------------------------------------------------------------------------------


def _where(topology: Topology, profile: SiteProfile, *, ranks: bool) -> list[str]:
    """Return lines that set `cpus` and, for many ranks, `nodes`, `ranks` and the rendezvous."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()]
    shares = "export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))"
    if profile.scheduler == "none":
        where = ["# Where: on this machine.", f"cpus={topology.cpus_per_task}", f"ranks={topology.ranks_per_node}"]
        return [*where, shares, *exports]
    if not ranks:
        return [*fragment("meeting_point", ranks=1)[:2], "export OMP_NUM_THREADS=$cpus", *exports]
    return [
        *fragment("elastic_meeting_point" if topology.max_nodes else "meeting_point", ranks=topology.ranks_per_node),
        shares,
        *(["export NCCL_DEBUG=WARN"] if topology.gpus_per_node else []),
        *exports,
        f'export {HOSTS}="${{hosts[*]}}"',
        'echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"',
    ]


# --- how --------------------------------------------------------------------------------------------------------------


def _launcher(python: str, module: str, topology: Topology, *, slurm: bool, ranks: bool) -> list[str]:
    program = f"{shlex.quote(python)} -m"
    if not ranks:
        return ["# How.", f"launcher=({program} {module})"]
    meet = ["--standalone", '"--nproc-per-node=$ranks"']
    if slurm and topology.max_nodes:
        nodes = f"--nnodes={topology.nodes}:{topology.max_nodes}"
        meet = [
            f'{nodes} "--nproc-per-node=$ranks" --max-restarts={MAX_RESTARTS}',
            '--rdzv-backend=c10d "--rdzv-endpoint=$rendezvous" "--rdzv-id=$meeting"',
        ]
    elif slurm:
        meet = [
            '"--nnodes=$nodes" "--nproc-per-node=$ranks"',
            '--rdzv-backend=c10d "--rdzv-endpoint=$rendezvous"',
            '"--rdzv-id=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
        ]
    lines = ["# How: one torchrun a node starts the ranks there.", "launcher=("]
    return [*lines, *(f"    {line}" for line in (f"{program} heartlm.cluster.torchrun", *meet, f"-m {module}")), ")"]


def _container(topology: Topology, profile: SiteProfile) -> list[str]:
    if profile.container == "none":
        return []
    assert profile.image is not None, "the profile was checked"
    binds = ['"$PWD"', *map(shlex.quote, profile.binds)]
    lines = ["launcher=(", f'    apptainer exec{" --nv" if topology.gpus_per_node else ""} --pwd "$PWD"']
    lines += [f"    --bind {folder}" for folder in binds]
    return [*lines, f"    {shlex.quote(profile.image)}", '    "${launcher[@]}"', ")"]


def _started(topology: Topology, profile: SiteProfile, *, ranks: bool) -> list[str]:
    run, slurm = '"${launcher[@]}" "${command[@]}"', profile.scheduler == "slurm"
    if not ranks:
        return [f'exec srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" {run}' if slurm else f"exec {run}"]
    lead, lines = lead_s(topology, profile), list[str]()
    if not slurm:
        lines += [*fragment("start_here", stopped=STOPPED_STATUS), *fragment("wait")]
    else:
        others_s = OTHERS_END_WITHIN_S
        lines += fragment("start_on_slurm", lead_s=lead, stopped=STOPPED_STATUS, others_s=others_s)
        end = fragment("requeue", stopped=STOPPED_STATUS)
        if topology.max_nodes:
            end = fragment("elastic_end", stopped=STOPPED_STATUS, requeues=MOST_REQUEUES)
        lines += [*fragment("wait"), *end]
    return [*lines, 'exit "$status"']
