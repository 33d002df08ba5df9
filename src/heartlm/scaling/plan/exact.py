"""The soonest end of a few experiments, by complete search.

Experiments are placed in the order in which they begin, each as early as the GPUs of its nodes allow and never before
the one placed last. Sorted by their beginnings, the experiments of any schedule can be placed like this without one of
them beginning later, so the search over all orders, widths and sets of nodes finds a best one. Branches that cannot end
sooner than the best found are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from heartlm.scaling.plan.schedule import Cluster, Placed, PlannedJob, Schedule


def soonest(jobs: Sequence[PlannedJob], cluster: Cluster) -> Schedule:
    """A schedule that ends as soon as any can; its time grows with the factorial of the number of jobs."""
    best, best_end = Schedule([]), float("inf")
    least_work = {job.name: min(gpus * time for gpus, time in job.times.items()) for job in jobs}

    def search(waiting: tuple[PlannedJob, ...], placed: tuple[Placed, ...], free_from: list[list[float]]) -> None:
        """Place the `waiting` after the `placed`; `free_from[node][gpu]` is when a GPU has nothing more to do."""
        nonlocal best, best_end
        work = sum((each.end - each.start) * len(each.gpus) for each in placed)
        work += sum(least_work[job.name] for job in waiting)
        if max(Schedule(placed).end, work / cluster.num_gpus) >= best_end:
            return
        if not waiting:
            best, best_end = Schedule(placed), Schedule(placed).end
        ends = {each.name: each.end for each in placed}
        now = placed[-1].start if placed else 0.0
        for job in waiting:
            if not all(need in ends for need in job.needs):
                continue
            rest = tuple(each for each in waiting if each is not job)
            ready = max([now, *(ends[need] for need in job.needs)])
            for gpus, time in job.times.items():
                num_nodes = max(1, gpus // cluster.gpus_per_node)
                on_each, seen = gpus // num_nodes, set()
                for nodes in combinations(range(cluster.nodes), num_nodes):
                    alike = tuple(sorted(tuple(sorted(free_from[node])) for node in nodes))
                    if alike in seen:
                        continue
                    seen.add(alike)
                    start = max([ready, *(sorted(free_from[node])[on_each - 1] for node in nodes)])
                    # GPUs free at `start` are all alike for what begins later, so any of them will do
                    free = {node: [gpu for gpu, at in enumerate(free_from[node]) if at <= start] for node in nodes}
                    taken = tuple((node, gpu) for node in nodes for gpu in free[node][:on_each])
                    after = [list(node) for node in free_from]
                    for node, gpu in taken:
                        after[node][gpu] = start + time
                    search(rest, (*placed, Placed(job.name, start, start + time, taken)), after)

    search(tuple(jobs), (), [[0.0] * cluster.gpus_per_node for _ in range(cluster.nodes)])
    return best
