"""Batch scripts of runs: resource requests, command, placement, and handling of the exit status.

    header ─► modules ─► placement ─► command ─► srun ─► apptainer ─► torchrun ─► ranks ─► requeue, or the status

The bash of each part is a file in `cluster/fragments`. Values that depend on the allocation are computed when the
script runs, because a requeued job may get another number of nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from heartlm.cluster.fragment import fragment
from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.run_file import RANKED, RunFile
from heartlm.cluster.topology import Topology, time_limit
from heartlm.cluster.torchrun import HOSTS, STOPPED_STATUS
from heartlm.errors import HeartlmError

OTHERS_END_WITHIN_S = 60
"""Time in seconds that the other nodes have to finish their output after one node has ended."""


def render(
    run: RunFile,
    topology: Topology,
    profile: SiteProfile,
    *,
    name: str,
    logs: Path,
    before: Sequence[str] = (),
) -> str:
    """Return the script of one run.

    Args:
        run: run of the script; a training that can be resumed needs `out`.
        topology: requested resources.
        profile: site profile; without a scheduler, the script runs on this machine.
        name: job name.
        logs: folder of the job's output; it must exist when the job starts.
        before: bash lines that record the attempt and may requeue the job.
    """
    return batch_script(
        [*before, *_command_of(run)],
        topology,
        profile,
        title=f"heartlm {run.command}",
        name=name,
        logs=logs,
        ranks=run.command in RANKED,
        stops=run.is_training or bool(before),
    )


def batch_script(
    what: Sequence[str],
    topology: Topology,
    profile: SiteProfile,
    *,
    title: str,
    name: str,
    logs: Path,
    ranks: bool = True,
    stops: bool = True,
) -> str:
    """Return the script of a command of heartlm.

    Args:
        what: bash lines that set the array `command`, the arguments of heartlm; they may use `$cpus`.
        topology: requested resources.
        profile: site profile; without a scheduler, the script runs on this machine.
        title: what the first comment of the script names.
        name: job name.
        logs: folder of the job's output.
        ranks: whether torchrun starts many ranks; otherwise the program is one process.
        stops: whether the program can be asked to stop; the job is then requeued.

    Raises:
        HeartlmError: a value has a control character: a line end in a comment or `#SBATCH` line would start a command.
    """
    lines = ["#!/bin/bash -l" if profile.modules else "#!/bin/bash"]
    lines.append(f"# {title} on {topology.words}, profile {profile.name}.")
    if profile.scheduler == "slurm":
        lines += header(topology, profile, name=name, logs=logs, stops=stops)
    parts = [
        [*(f"module load {shlex.quote(module)}" for module in profile.modules), "set -euo pipefail"],
        _where(topology, profile, ranks=ranks),
        what,
        [*_launcher(profile, ranks=ranks), *_container(topology, profile)],
        _started(topology, profile, ranks=ranks, stops=stops),
    ]
    return "\n".join(map(one_line, [*lines, *(line for part in parts for line in ("", *part))])) + "\n"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, Unicode line ends, and surrogates of file names that are not UTF-8."""


def one_line(text: str) -> str:
    """Return `text` unchanged.

    Raises:
        HeartlmError: it has a control character.
    """
    if (found := _CONTROL.search(text)) is not None:
        around = text[max(0, found.start() - 60) : found.start() + 20]
        raise HeartlmError(
            f"{around!r} found where a script is written, no control character expected: take {found[0]!r} out of the "
            "name, path, option or field of the profile that it comes from"
        )
    return text


def header(topology: Topology, profile: SiteProfile, *, name: str, logs: Path, stops: bool = True) -> list[str]:
    """Return the `#SBATCH` lines; arguments as in `batch_script`."""
    options = [_quoted(f"--job-name={name}"), f"--nodes={topology.nodes}", "--ntasks-per-node=1"]
    if topology.gpus_per_node:
        options.append(profile.gpu_option.replace("{gpus}", str(topology.gpus_per_node)))
    options += [f"--cpus-per-task={topology.cpus_per_task}", f"--time={time_limit(topology.time_s)}"]
    charged = {key: getattr(profile, key) for key in ("account", "partition", "qos")}
    options += [_quoted(f"--{key}={value}") for key, value in charged.items() if value]
    if stops:
        options += [f"--signal=B:USR1@{_lead_s(topology, profile)}", "--requeue", "--open-mode=append"]
    options += [_quoted(f"--output={logs / f'{name}-%j.out'}"), *profile.header]
    return [f"#SBATCH {option}" for option in options]


def _quoted(option: str) -> str:
    """Quote an option so that sbatch reads it as one word: sbatch splits at blanks and ends lines at #."""
    if re.search(r"""[\s"'\\#]""", option) is None:
        return option
    return '"' + re.sub(r"""(["\\])""", r"\\\1", option) + '"'


def _lead_s(topology: Topology, profile: SiteProfile) -> int:
    """Return how many seconds before the time limit ranks are asked to stop, at most a quarter of the limit."""
    return min(profile.signal_before_s, max(1, topology.time_s // 4))


def command_lines(words: Sequence[str]) -> list[str]:
    """Return bash lines that set `command` to `words`, which are quoted already."""
    return ["# What to run.", "command=(", *(f"    {word}" for word in words), ")"]


def _command_of(run: RunFile) -> list[str]:
    """Return lines that set `command` for one run; a started training is resumed."""
    words = [shlex.quote(word) for word in run.argv()]
    if run.command == "tokenize":
        processes = run.fields.get("processes")
        most = "$cpus" if processes is None else f"$((cpus < {int(processes)} ? cpus : {int(processes)}))"
        words = [word for word in words if not word.startswith("--processes=")] + [f'"--processes={most}"']
    resume = [f"run_folder={shlex.quote(str(run.out))}", *fragment("resume")] if run.is_training else []
    return [*command_lines(words), *resume]


def _where(topology: Topology, profile: SiteProfile, *, ranks: bool) -> list[str]:
    """Return lines that set `cpus`, `nodes` and, for many ranks, `ranks` and the rendezvous."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()]
    shares = "export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))"
    if profile.scheduler == "none":
        return [*fragment("here", cpus=topology.cpus_per_task, ranks=topology.ranks_per_node), shares, *exports]
    if not ranks:
        return [*fragment("nodes"), "export OMP_NUM_THREADS=$cpus", *exports]
    return [
        *fragment("nodes"),
        *fragment("meeting_point", ranks=topology.ranks_per_node),
        shares,
        *(["export NCCL_DEBUG=WARN"] if topology.gpus_per_node else []),
        *exports,
        f'export {HOSTS}="${{hosts[*]}}"',
        'echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"',
    ]


def _launcher(profile: SiteProfile, *, ranks: bool) -> list[str]:
    python = shlex.quote(profile.python)
    if not ranks:
        return ["# How.", f"launcher=({python} -m heartlm)"]
    return fragment("torchrun_here" if profile.scheduler == "none" else "torchrun", python=python)


def _container(topology: Topology, profile: SiteProfile) -> list[str]:
    if profile.container == "none":
        return []
    assert profile.image is not None, "the profile was checked"
    binds = ['"$PWD"', *map(shlex.quote, profile.binds)]
    lines = ["launcher=(", f'    apptainer exec{" --nv" if topology.gpus_per_node else ""} --pwd "$PWD"']
    lines += [f"    --bind {folder}" for folder in binds]
    return [*lines, f"    {shlex.quote(profile.image)}", '    "${launcher[@]}"', ")"]


def _started(topology: Topology, profile: SiteProfile, *, ranks: bool, stops: bool) -> list[str]:
    run, is_here = '"${launcher[@]}" "${command[@]}"', profile.scheduler == "none"
    if is_here and ranks:
        lines = [*fragment("start_here", stopped=STOPPED_STATUS), *fragment("wait")]
    elif is_here or not stops:
        return [
            f"exec {run}" if is_here else f'exec srun --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="$cpus" {run}'
        ]
    else:
        lead, others_s = _lead_s(topology, profile), OTHERS_END_WITHIN_S
        lines = fragment("start_on_slurm", lead_s=lead, stopped=STOPPED_STATUS, others_s=others_s)
        lines += [*fragment("wait"), *fragment("requeue", stopped=STOPPED_STATUS)]
    return [*lines, 'exit "$status"']
