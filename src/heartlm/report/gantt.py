"""A plan as a picture: a row for each GPU, a bar for each experiment on it, nodes apart."""

from __future__ import annotations

from collections.abc import Mapping

from heartlm.report.svg import Markup, Scale, drawing, group, rectangle, tag, text, x_grid
from heartlm.scaling.plan.schedule import Cluster, Placed, Schedule

WIDTH, LEFT, TOP, BOTTOM = 960, 74, 34, 34
ROW, NODE_GAP = 18, 8
NUM_COLOURS = 6

STYLE = """
text{font:11px system-ui,sans-serif;fill:#222}.title{font-size:13px}.label{fill:#fff;font-size:10px}
.grid{stroke:#ddd}.c0{fill:#2a6f97}.c1{fill:#bc4b51}.c2{fill:#5b8e7d}.c3{fill:#8d6a9f}.c4{fill:#c17c2f}.c5{fill:#555b6e}
@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#ddd}.grid{stroke:#3a3d45}}
"""


def gantt(schedule: Schedule, colours: Mapping[str, int], cluster: Cluster, *, title: str, unit: str) -> Markup:
    """Draw a schedule, its times in `unit`; experiments of the same number in `colours` look alike.

    The picture carries its own styles.
    """
    nodes, gpus_per_node = cluster.nodes, cluster.gpus_per_node
    height = TOP + nodes * (gpus_per_node * ROW + NODE_GAP) + BOTTOM
    x = Scale(0.0, schedule.end or 1.0, LEFT, WIDTH - 12)
    rows = [
        text(LEFT - 6, _top(node, gpu, gpus_per_node) + 13, f"{node + 1}.{gpu + 1}", text_anchor="end")
        for node in range(nodes)
        for gpu in range(gpus_per_node)
    ]
    bars = [
        _bar(each, f"c{colours[each.name] % NUM_COLOURS}", _top(node, gpu, gpus_per_node), x)
        for each in schedule.placed
        for node, gpu in each.gpus
    ]
    return drawing(
        WIDTH,
        height,
        title,
        tag("style", Markup(STYLE)),
        text(LEFT, 18, title, class_="title"),
        text(8, 18, "node.GPU"),
        text(WIDTH - 12, height - 4, unit, text_anchor="end"),
        x_grid(x, TOP - 4, height - BOTTOM, 8),
        *rows,
        *bars,
        xmlns="http://www.w3.org/2000/svg",
    )


def _top(node: int, gpu: int, gpus_per_node: int) -> float:
    return TOP + node * (gpus_per_node * ROW + NODE_GAP) + gpu * ROW


def _bar(placed: Placed, colour: str, top: float, x: Scale) -> Markup:
    left, right = x(placed.start), x(placed.end)
    hover = tag("title", f"{placed.name}: {placed.start:.4g} to {placed.end:.4g}")
    box = rectangle(left + 0.5, top + 1, right - left - 1, ROW - 2, hover, class_=colour, rx=2)
    room = int((right - left - 6) / 5.6)
    return group(box, text(left + 4, top + 13, placed.name[:room], class_="label")) if room > 1 else box
