"""One readable batch script for a run: what to ask SLURM for, what to run, where, and what becomes of it.

    header ─► modules ─► what to run ─► where ─► srun ─► apptainer ─► torchrun ─► ranks ─► requeue, or the status

The parts are functions that return lines, so that others can compose scripts of their own: `what` may be the one run
of a file, or a line of a list chosen by the task of an array. Whatever depends on the allocation is worked out when the
script runs, because a job that queued again may have got another number of nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from heartlm.cluster.elastic import END, meet_options, where_lines
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.sharing import gpu_option
from heartlm.cluster.topology import Topology, time_limit
from heartlm.cluster.torchrun import HOSTS, STOPPED_STATUS
from heartlm.errors import HeartlmError

OTHERS_END_WITHIN_S = 60
"""A node that ended lets the others finish their last words for so long."""


def render(
    run: RunFile, topology: Topology, profile: SiteProfile, *, name: str, logs: Path, python: str = "python"
) -> str:
    """The script of one run.

    Args:
        run: what to run; training that is to be resumed must say where it writes (`out`).
        topology: what to ask for.
        profile: of the site, or one without a scheduler, for a script that runs on this machine.
        name: of the job.
        logs: folder of the job's output; it must exist when the job starts.
        python: the interpreter that has heartlm; in a container `python`.
    """
    title = f"# heartlm {run.command} on {topology.words}, profile {profile.name}."
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash", title]
    if profile.scheduler == "slurm":
        lines += header(topology, profile, name=name, output=logs / f"{name}-%j.out", stops=run.is_training)
    return text_of([*lines, "", *body(what(run), topology, profile, python=python, ranks=run.is_training)])


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line ends of Unicode, and what stands for bytes of a file name that are no UTF-8."""


def text_of(lines: Sequence[str]) -> str:
    """A script, with its last line ended. All that is written into scripts passes here.

    Raises:
        HeartlmError: a line holds a control character, which can come only from a value in it.
    """
    return "\n".join(map(one_line, lines)) + "\n"


def one_line(text: str) -> str:
    """`text` as it is.

    Raises:
        HeartlmError: it holds a control character: a line end in a comment or in `#SBATCH` would begin a command.
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
    """The lines `#SBATCH`.

    Args:
        topology: what to ask for.
        profile: of the site.
        name: of the job.
        output: file for what it prints; it may hold SLURM's patterns (%j, %A_%a).
        stops: it can be asked to stop, and queue again.
        further: options such as `--array=0-7`.
    """
    options = [_quoted(f"--job-name={name}"), f"--nodes={topology.nodes}", "--ntasks-per-node=1"]
    if topology.gpus_per_node:
        options.append(gpu_option(topology, profile))
    options += [f"--cpus-per-task={topology.cpus_per_task}", f"--time={time_limit(topology.time_s)}"]
    charged = {key: getattr(profile, key) for key in ("account", "partition", "qos")}
    options += [_quoted(f"--{key}={value}") for key, value in charged.items() if value]
    if stops:
        options += [f"--signal=B:USR1@{lead_s(topology, profile)}", "--requeue", "--open-mode=append"]
    options += [_quoted(f"--output={output}"), *profile.header, *further]
    return [f"#SBATCH {option}" for option in options]


def _quoted(option: str) -> str:
    """An option that sbatch reads as one word: it ends words at blanks and lines at #, and knows quotes."""
    if re.search(r"""[\s"'\\#]""", option) is None:
        return option
    return '"' + re.sub(r"""(["\\])""", r"\\\1", option) + '"'


def lead_s(topology: Topology, profile: SiteProfile) -> int:
    """How long before the time limit ranks are asked to stop: as the profile says, of short jobs a quarter."""
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
    """All that comes after the header.

    Args:
        what: lines of bash that set the array `command`, the words after the program; they may use `$cpus`.
        topology: what was asked for.
        profile: of the site; without a scheduler the lines are for this machine.
        python: the interpreter that has heartlm.
        module: the program, a module of Python.
        ranks: many ranks run it, with torchrun; else it is one process.
    """
    slurm = profile.scheduler == "slurm"
    parts = [
        [*(f"module load {shlex.quote(module)}" for module in profile.modules), "set -euo pipefail"],
        _where(topology, profile, ranks=ranks) if slurm else _here(topology, profile),
        list(what),
        [*_launcher(python, module, topology, slurm=slurm, ranks=ranks), *_container(topology, profile)],
        _started(lead_s(topology, profile), slurm=slurm, ranks=ranks, is_elastic=topology.max_nodes > 0),
    ]
    return [line for part in parts for line in ("", *part)][1:]


# --- what -------------------------------------------------------------------------------------------------------------

RESUME = [
    'if grep -qs \'"finished": null\' "$run_folder/run.json"; then',
    '    echo "$run_folder was started and is not finished: it continues"',
    '    command=("${command[0]}" "--resume=$run_folder")',
    "fi",
]
"""Lines that turn `command` into one that continues, where the run in `run_folder` was started already."""


def what(run: RunFile) -> list[str]:
    """Lines that set `command` for one run; training that was started already continues."""
    words = [shlex.quote(word) for word in run.argv()]
    if run.command == "tokenize":
        processes = run.fields.get("processes")
        most = "$cpus" if processes is None else f"$((cpus < {int(processes)} ? cpus : {int(processes)}))"
        words = [word for word in words if not word.startswith("--processes=")] + [f'"--processes={most}"']
    lines = ["# What to run.", "command=(", *(f"    {word}" for word in words), ")"]
    if not run.is_training:
        return lines
    return [*lines, f"run_folder={shlex.quote(str(run.out))}", *RESUME]


# --- where ------------------------------------------------------------------------------------------------------------


def _where(topology: Topology, profile: SiteProfile, *, ranks: bool) -> list[str]:
    lines = [
        "# Where: what SLURM gave, which may be another number of nodes after a requeue.",
        "cpus=$SLURM_CPUS_PER_TASK",
    ]
    if not ranks:
        return [*lines, *_threads("1"), *_exports(profile)]
    return [
        *(where_lines(topology) if topology.max_nodes else [*lines, *_meeting_point(topology)]),
        *_threads("ranks"),
        *(["export NCCL_DEBUG=WARN"] if topology.gpus_per_node else []),
        *_exports(profile),
        f'export {HOSTS}="${{hosts[*]}}"',
        'echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"',
    ]


def _meeting_point(topology: Topology) -> list[str]:
    return [
        "nodes=$SLURM_JOB_NUM_NODES",
        f"ranks={topology.ranks_per_node} # on each",
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "address=$(scontrol --oneliner show node \"${hosts[0]}\" | grep -o 'NodeAddr=[^ ]*')",
        'rendezvous="${address#NodeAddr=}:$((10000 + SLURM_JOB_ID % 20000))"',
    ]


def _here(topology: Topology, profile: SiteProfile) -> list[str]:
    lines = ["# Where: on this machine.", f"cpus={topology.cpus_per_task}", f"ranks={topology.ranks_per_node}"]
    return [*lines, *_threads("ranks"), *_exports(profile)]


def _threads(ranks: str) -> list[str]:
    """Threads of a rank: its share of the CPUs."""
    return ["export OMP_NUM_THREADS=" + ("$cpus" if ranks == "1" else "$((cpus > ranks ? cpus / ranks : 1))")]


def _exports(profile: SiteProfile) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()]


# --- how --------------------------------------------------------------------------------------------------------------


def _launcher(python: str, module: str, topology: Topology, *, slurm: bool, ranks: bool) -> list[str]:
    program = f"{shlex.quote(python)} -m"
    if not ranks:
        return ["# How.", f"launcher=({program} {module})"]
    meet = ["--standalone", '"--nproc-per-node=$ranks"']
    if slurm and topology.max_nodes:
        meet = meet_options(topology)
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


def _started(lead_s: int, *, slurm: bool, ranks: bool, is_elastic: bool) -> list[str]:
    run = '"${launcher[@]}" "${command[@]}"'
    if not ranks:
        return [f'exec srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" {run}' if slurm else f"exec {run}"]
    lines = ["step=", "asked=", "cancelled="]
    if slurm:
        lines += [
            f"# Asked to stop, {lead_s} s before the time limit, ranks save a checkpoint and end with status "
            f"{STOPPED_STATUS}; then",
            "# this job queues again and continues where it was. Cancelled, it does not.",
            "trap 'asked=yes; kill -USR1 \"$step\" || true' USR1",
            "trap 'asked=yes cancelled=yes' TERM",
            'srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task="$cpus" --cpu-bind=cores \\',
            f"    --kill-on-bad-exit=0 --wait={OTHERS_END_WITHIN_S} \\",
            f"    {run} &",
        ]
    else:
        lines[-1:] = [
            f"# Asked to stop, ranks save a checkpoint and end with {STOPPED_STATUS}; the same command continues.",
            "trap 'asked=yes; kill -USR1 \"$step\" || true' USR1 INT TERM",
            f"{run} &",
        ]
    lines += ["step=$!", *WAIT]
    lines += END if is_elastic else REQUEUE if slurm else []
    return [*lines, 'exit "$status"']


WAIT = [
    "status=0",
    'wait "$step" || status=$?',
    "while [[ -n $asked ]]; do # a signal ended the waiting, not the run",
    "    asked=",
    "    status=0",
    '    wait "$step" || status=$?',
    "done",
]

REQUEUE = [
    f"if ((status == {STOPPED_STATUS})) && [[ -z $cancelled ]]; then",
    '    scontrol requeue "$SLURM_JOB_ID"',
    "fi",
]
