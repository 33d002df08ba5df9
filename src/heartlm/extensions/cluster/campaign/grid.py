"""Expand the grid and the stages of a campaign into experiments. Pure functions.

The axes of a stage are those that its text mentions, directly as `{window}` or through another stage as in
`{pretrain.out}`. A stage has one experiment for each combination of their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from heartlm.errors import HeartlmError

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)(?:\.([A-Za-z_][A-Za-z0-9_]*))?\}")
_UNFIT = re.compile(r"[^A-Za-z0-9._=+-]+")

Values = dict[str, Any]
"""One value for each of some axes."""

Axes = dict[str, list[str | int | float | bool | None]]


@dataclass(frozen=True)
class CampaignStage:
    """A stage as written in the file; its texts mention axes and other stages."""

    run: dict[Any, Any]
    name: str | None = None
    needs: list[str] = field(default_factory=list)
    topology: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentDraft:
    """An experiment as written in the file or generated from a stage, without the defaults of the campaign."""

    name: str
    run: dict[Any, Any]
    stage: str | None = None
    needs: list[str] = field(default_factory=list)
    topology: dict[str, Any] = field(default_factory=dict)


Drafts = Sequence[tuple[Values, ExperimentDraft]]
"""Experiments of a stage, each with its axis values."""


def drafts_of_stages(grid: Axes, stages: Mapping[str, CampaignStage]) -> list[ExperimentDraft]:
    """Return the experiments of all stages, in order.

    Raises:
        HeartlmError: an axis has no values or is not mentioned, or a placeholder is unknown.
    """
    for axis, values in grid.items():
        if not values or len(set(map(_text, values))) < len(values):
            raise HeartlmError(f"grid.{axis}: {values!r} found, at least one value, and each value once, expected")
    done: dict[str, Drafts] = {}
    for stage, content in stages.items():
        if any(need not in done for need in content.needs):
            raise HeartlmError(f"stages.{stage}.needs: {content.needs!r} found, names of stages above it expected")
        used_axes = _mentioned_axes(stage, [content.run, content.name, content.topology], grid, done)
        axes = {axis: grid[axis] for axis in grid if axis in used_axes}
        done[stage] = [(at, _draft(stage, content, at, done)) for at in combinations(axes)]
    mentioned = {axis for drafts in done.values() for at, _ in drafts for axis in at}
    if unused := [axis for axis in grid if axis not in mentioned]:
        raise HeartlmError(f"grid: {unused[0]} is mentioned by no stage: write {{{unused[0]}}} where it belongs")
    return [draft for drafts in done.values() for _, draft in drafts]


def _draft(stage: str, content: CampaignStage, at: Values, done: Mapping[str, Drafts]) -> ExperimentDraft:
    """Return the experiment of a stage at the axis values `at`."""

    def fill(place: re.Match[str]) -> Any:
        """Return an axis value, or a field of the matching experiment of another stage."""
        if place[2] is None:
            return at[place[1]]
        (other,) = _agreeing(done[place[1]], at)
        if place[2] not in other.run:
            raise HeartlmError(f"stages.{stage}: {place[0]} found, but {other.name} has no {place[2]}")
        return other.run[place[2]]

    by_values = [_UNFIT.sub("-", _text(value)).strip("-") or "x" for value in at.values()]
    return ExperimentDraft(
        name=str(_filled(content.name, fill)) if content.name else "-".join([stage, *by_values]),
        stage=stage,
        run=_filled(content.run, fill),
        needs=[draft.name for need in content.needs for draft in _agreeing(done[need], at)],
        topology=_filled(content.topology, fill),
    )


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[Values]:
    """Yield each combination of axis values, the last axis changing fastest; without axes, one empty combination."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _agreeing(drafts: Drafts, at: Values) -> list[ExperimentDraft]:
    """Return the drafts with the same values as `at` on all common axes."""
    return [draft for own, draft in drafts if all(own[axis] == at[axis] for axis in own if axis in at)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text within nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from texts_in(entry)


def _filled(value: Any, fill: Callable[[re.Match[str]], Any]) -> Any:
    """Fill every placeholder in the texts of `value`; a text that is one placeholder becomes the value itself."""
    if isinstance(value, dict):
        return {key: _filled(entry, fill) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, fill) for entry in value]
    if not isinstance(value, str):
        return value
    if whole := _PLACE.fullmatch(value):
        return fill(whole)
    return _PLACE.sub(lambda place: _text(fill(place)), value)


def _mentioned_axes(stage: str, contents: list[Any], grid: Axes, done: Mapping[str, Drafts]) -> set[str]:
    """Return the axes that the texts of a stage mention, directly or through other stages."""
    axes: set[str] = set()
    for place in (place for text in texts_in(contents) for place in _PLACE.finditer(text)):
        name, output = place[1], place[2]
        if output is None and name in grid:
            axes.add(name)
        elif output is not None and name in done:
            axes.update(done[name][0][0])
        else:
            known = [*grid, *(f"{other}.out" for other in done)]
            raise HeartlmError(f"stages.{stage}: {place[0]} found, one of {', '.join(known) or 'no axis'} expected")
    return axes
