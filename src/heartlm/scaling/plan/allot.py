"""Choose the number of GPUs of each experiment: moldable-job scheduling.

    time limit per experiment ─► for each the fewest GPU-hours within the limit ─► list scheduling
    … for each limit          ─► the best plan ─► widen or narrow the experiments that end last, while it helps

Two phases, as in Turek, Wolf & Yu (1992) and Ludwig & Tiwari (1994): choose widths, then place. With more GPUs an
experiment ends sooner and costs more GPU-hours. If there are many experiments, few GPUs each are best; if few, many.
The last experiments of a campaign use more GPUs than the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from heartlm.errors import HeartlmError
from heartlm.scaling.plan.schedule import Cluster, PlannedJob, Schedule, critical_paths, list_schedule

MOST_LIMITS = 64
"""Maximum number of time limits to try; if there are more, they are sampled evenly."""

MOST_CHANGES = 32
GOOD = 1.001
"""A plan within this factor of the lower bound of the end is not improved further."""

Cost = Callable[[Schedule], tuple[float, float]]


@dataclass(frozen=True)
class CampaignPlan:
    """A plan and its references.

    Attributes:
        schedule: schedule of the plan.
        naive: reference schedule: every experiment on as many GPUs as possible, in list order.
        least_end: lower bound of the end of any plan.
    """

    schedule: Schedule
    naive: Schedule
    least_end: float


def plan(
    jobs: Sequence[PlannedJob],
    cluster: Cluster,
    *,
    cheapest: bool = False,
    most_node_time: float | None = None,
    deadline: float | None = None,
    whole: tuple[Sequence[PlannedJob], Cluster] | None = None,
) -> CampaignPlan:
    """Choose the widths and places of jobs.

    Args:
        jobs: jobs, each with times for at least one width that fits the cluster.
        cluster: available nodes.
        cheapest: minimise node-time instead of the end.
        most_node_time: maximum node-time.
        deadline: latest end.
        whole: jobs and cluster without GPU sharing, for the naive plan.

    Raises:
        HeartlmError: an experiment does not fit anywhere, or no plan within the limits was found.
    """
    jobs = [_fitting(job, cluster) for job in jobs]
    cost = _cheapest if cheapest else _soonest
    found = list(_candidates(jobs, cluster, with_fewer_nodes=cheapest or most_node_time is not None))
    allowed = [
        each
        for each in found
        if (most_node_time is None or each.node_time <= most_node_time * (1 + 1e-9))
        and (deadline is None or each.end <= deadline * (1 + 1e-9))
    ]
    if not allowed:
        raise HeartlmError(_why_none(found, most_node_time, deadline))
    alone, machines = ([_fitting(job, whole[1]) for job in whole[0]], whole[1]) if whole else (jobs, cluster)
    naive = list_schedule(alone, {job.name: max(job.times) for job in alone}, machines)
    return CampaignPlan(min(allowed, key=cost), naive, least_end(jobs, cluster))


def _soonest(schedule: Schedule) -> tuple[float, float]:
    return schedule.end, schedule.node_time


def _cheapest(schedule: Schedule) -> tuple[float, float]:
    return schedule.node_time, schedule.end


def _fitting(job: PlannedJob, cluster: Cluster) -> PlannedJob:
    times = {gpus: time for gpus, time in sorted(job.times.items()) if cluster.fits(gpus)}
    if not times:
        raise HeartlmError(
            f"{job.name}: its times are known for {', '.join(map(str, job.times))} GPUs, and none of that fits "
            f"{cluster.nodes} nodes of {cluster.gpus_per_node}"
        )
    return PlannedJob(job.name, times, job.needs)


def _candidates(jobs: Sequence[PlannedJob], cluster: Cluster, with_fewer_nodes: bool) -> Iterator[Schedule]:
    """Yield plans for the whole cluster and for fewer nodes, with the soonest and the cheapest of each improved."""
    fewer = [2**power for power in range(cluster.nodes.bit_length()) if 2**power < cluster.nodes]
    for nodes in (cluster.nodes, *(fewer if with_fewer_nodes else ())):
        some = Cluster(nodes, cluster.gpus_per_node)
        if not all(any(map(some.fits, job.times)) for job in jobs):
            continue
        fitting = [_fitting(job, some) for job in jobs]
        tried = [(schedule, widths) for widths in _two_phase(fitting) for schedule in _tried(fitting, widths, some)]
        yield from (schedule for schedule, _ in tried)
        for cost in (_soonest, _cheapest):
            best, widths = min(tried, key=lambda each, cost=cost: cost(each[0]))  # type: ignore[misc]
            if cost is _cheapest or best.end > GOOD * least_end(fitting, some):
                yield _improved(fitting, best, widths, some, cost)


def _two_phase(jobs: Sequence[PlannedJob]) -> Iterator[dict[str, int]]:
    """Yield widths for each time limit: the fewest GPU-hours within the limit, or the fastest if none is."""
    limits = sorted({time for job in jobs for time in job.times.values()})
    step = max(1, -(-len(limits) // MOST_LIMITS))
    for limit in {*limits[::step], limits[-1]}:
        widths = {}
        for job in jobs:
            soon = {gpus: (gpus * time, gpus) for gpus, time in job.times.items() if time <= limit}
            widths[job.name] = min(soon, key=soon.__getitem__) if soon else min(job.times, key=job.times.__getitem__)
        yield widths


def _tried(jobs: Sequence[PlannedJob], widths: Mapping[str, int], cluster: Cluster) -> list[Schedule]:
    """Return two schedules: one with the longest chains first, one with the most GPU-hours first."""
    paths = critical_paths(jobs, widths)
    by_path = sorted(jobs, key=lambda job: (-paths[job.name], -widths[job.name]))
    by_work = sorted(jobs, key=lambda job: -widths[job.name] * job.times[widths[job.name]])
    return [list_schedule(order, widths, cluster) for order in (by_path, by_work)]


def _improved(
    jobs: Sequence[PlannedJob], best: Schedule, widths: dict[str, int], cluster: Cluster, cost: Cost
) -> Schedule:
    """Change the width of an experiment that ends last, while that improves the plan."""
    for _ in range(min(len(jobs), MOST_CHANGES)):
        last = {each.name for each in best.placed if each.end >= best.end * (1 - 1e-9)}
        others = [
            (schedule, changed)
            for job in jobs
            if job.name in last
            for gpus in job.times
            if gpus != widths[job.name]
            for changed in ({**widths, job.name: gpus},)
            for schedule in _tried(jobs, changed, cluster)
        ]
        better = min(others, key=lambda each: cost(each[0]), default=None)
        if better is None or cost(better[0]) >= cost(best):
            break
        best, widths = better
    return best


def least_end(jobs: Sequence[PlannedJob], cluster: Cluster) -> float:
    """Return a lower bound: all GPUs busy with the fewest GPU-hours, or the longest chain at its fastest."""
    work = sum(min(gpus * time for gpus, time in job.times.items()) for job in jobs)
    fastest = {job.name: min(job.times, key=lambda gpus, job=job: job.times[gpus]) for job in jobs}  # type: ignore[misc]
    return max(work / cluster.num_gpus, *critical_paths(jobs, fastest).values())


def _why_none(found: Sequence[Schedule], most_node_time: float | None, deadline: float | None) -> str:
    soon, cheap = min(found, key=_soonest), min(found, key=_cheapest)
    limits = [f"{most_node_time:g} node-hours"] if most_node_time is not None else []
    limits += [f"a deadline of {deadline:g}"] if deadline is not None else []
    return (
        f"no plan keeps to {' and '.join(limits)}: the soonest ends after {soon.end:.4g} with {soon.node_time:.4g} "
        f"node-hours, the cheapest after {cheap.end:.4g} with {cheap.node_time:.4g}; allow more, or leave some out"
    )
