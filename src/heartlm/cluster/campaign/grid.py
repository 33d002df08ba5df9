"""From the grid of a campaign and the texts of its stages to experiments. Pure functions of what the file says.

The axes of a stage are those that its text mentions, directly as `{window}` or by way of another stage as in
`{pretrain.out}`. The stage is done once for every combination of their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from heartlm.errors import HeartlmError

STAGE_FIELDS = ("name", "run", "needs", "topology")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)(?:\.([A-Za-z_][A-Za-z0-9_]*))?\}")
_UNFIT = re.compile(r"[^A-Za-z0-9._=+-]+")

Values = dict[str, Any]
"""A value for each of some axes."""


@dataclass(frozen=True)
class ExperimentDraft:
    """An experiment as the file says it, not checked yet.

    Attributes:
        name: of the experiment.
        stage: of which it is one.
        run: command and fields.
        needs: names of experiments.
        topology: as the file has it; None where the campaign's own holds.
        start_s: planned start.
        at: the values of its axes.
    """

    name: str
    stage: str
    run: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    topology: Any = None
    start_s: Any = 0.0
    at: Values = field(default_factory=dict)


def drafts_of_stages(grid: Mapping[str, Any], stages: Mapping[str, Any]) -> list[ExperimentDraft]:
    """The experiments of all stages, in their order.

    Raises:
        HeartlmError: an axis without values or that is not mentioned, a mention of something unknown.
    """
    _check_axes(grid)
    done: dict[str, list[ExperimentDraft]] = {}
    for stage, content in stages.items():
        done[stage] = _drafts(stage, content, grid, done)
    drafts = [draft for drafts in done.values() for draft in drafts]
    if unused := [axis for axis in grid if not any(axis in draft.at for draft in drafts)]:
        raise HeartlmError(f"grid: {unused[0]} is mentioned by no stage: write {{{unused[0]}}} where it belongs")
    return drafts


def _check_axes(grid: Mapping[str, Any]) -> None:
    for axis, values in grid.items():
        if not isinstance(values, list) or not values:
            raise HeartlmError(f"grid.{axis}: {values!r} found, a list of values expected")
        if any(isinstance(value, dict | list) for value in values):
            raise HeartlmError(f"grid.{axis}: {values!r} found, plain values expected")
        if len(set(map(_text, values))) < len(values):
            raise HeartlmError(f"grid.{axis}: {values!r} found, each value once expected")


def _drafts(
    stage: str, content: Any, grid: Mapping[str, list[Any]], done: Mapping[str, list[ExperimentDraft]]
) -> list[ExperimentDraft]:
    content = _checked(stage, content, done)
    name, topology = content.get("name"), content.get("topology")
    mine = _mentioned_axes(stage, [content["run"], name, topology], grid, done)
    drafts = []
    for at in combinations({axis: grid[axis] for axis in grid if axis in mine}):
        scope = _Scope(stage, at, done)
        drafts.append(
            ExperimentDraft(
                name=str(scope.filled(name)) if name else "-".join([stage, *(_plain(value) for value in at.values())]),
                stage=stage,
                run=scope.filled(content["run"]),
                needs=tuple(draft.name for need in content["needs"] for draft in agreeing(done[need], at)),
                topology=scope.filled(topology),
                at=at,
            )
        )
    return drafts


def _checked(stage: str, content: Any, done: Mapping[str, Any]) -> dict[str, Any]:
    content = mapping(content, f"stages.{stage}", STAGE_FIELDS)
    if not isinstance(content.get("run"), dict):
        raise HeartlmError(f"stages.{stage}.run: {content.get('run')!r} found, a command and its fields expected")
    needs = names_in(content.get("needs", []), f"stages.{stage}.needs")
    if any(need not in done for need in needs):
        raise HeartlmError(f"stages.{stage}.needs: {needs!r} found, names of stages above it expected")
    return {**content, "needs": needs}


def mapping(value: Any, what: str, known: Iterable[str] | None = None) -> dict[str, Any]:
    """`value`, which should be a mapping from texts, of the fields `known`.

    Raises:
        HeartlmError: it is something else, or has other fields.
    """
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise HeartlmError(f"{what}: {value!r} found, fields with their values expected")
    for key in value:
        if known is not None and key not in known:
            raise HeartlmError(f"{what}: {key} found, one of {', '.join(known)} expected")
    return value


def names_in(value: Any, what: str) -> list[str]:
    """`value`, a name or a list of names, as a list.

    Raises:
        HeartlmError: it is something else.
    """
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise HeartlmError(f"{what}: {value!r} found, a list of names expected")
    return names


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[Values]:
    """Every combination of a value of each axis, the last axis changing fastest; one empty one of no axes."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def agreeing(drafts: Sequence[ExperimentDraft], at: Values) -> list[ExperimentDraft]:
    """Those of `drafts` that have the same values as `at` on all axes they have in common."""
    return [draft for draft in drafts if all(draft.at[axis] == at[axis] for axis in draft.at if axis in at)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: Any) -> str:
    return _UNFIT.sub("-", _text(value)).strip("-") or "x"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)


def _mentioned_axes(
    stage: str, contents: list[Any], grid: Mapping[str, list[Any]], done: Mapping[str, list[ExperimentDraft]]
) -> set[str]:
    """The axes that the texts of a stage mention, and those of the stages whose fields they mention."""
    mine: set[str] = set()
    for match in (match for text in _texts(contents) for match in _PLACE.finditer(text)):
        name, of_stage = match[1], match[2]
        if of_stage is None and name in grid:
            mine.add(name)
        elif of_stage is not None and name in done:
            mine.update(done[name][0].at)
        else:
            known = [*grid, *(f"{other}.out" for other in done)]
            raise HeartlmError(f"stages.{stage}: {match[0]} found, one of {', '.join(known) or 'no axis'} expected")
    return mine


@dataclass(frozen=True)
class _Scope:
    """What places in the texts of one experiment stand for."""

    stage: str
    at: Values
    done: Mapping[str, list[ExperimentDraft]]

    def filled(self, value: Any) -> Any:
        """`value` with every place in its texts filled."""
        if isinstance(value, dict):
            return {key: self.filled(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.filled(entry) for entry in value]
        if not isinstance(value, str):
            return value
        if whole := _PLACE.fullmatch(value):
            return self.value(whole)
        return _PLACE.sub(lambda match: _text(self.value(match)), value)

    def value(self, match: re.Match[str]) -> Any:
        """The value of an axis, or a field of the experiment of another stage that agrees with this one."""
        if match[2] is None:
            return self.at[match[1]]
        (draft,) = agreeing(self.done[match[1]], self.at)
        if match[2] not in draft.run:
            raise HeartlmError(f"stages.{self.stage}: {match[0]} found, but {draft.name} has no {match[2]}")
        return draft.run[match[2]]
