"""Values of JSON and YAML against type hints: what fits, and the one line where something does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from heartlm.errors import HeartlmError
from heartlm.storage.typed import typed


@dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...]
    point: tuple[int, float] = (0, 0.0)


@dataclass
class Outer:
    name: str
    rate: float = 1.0
    count: int | None = None
    on: bool = False
    kind: Literal["a", "b"] = "a"
    out: Path | None = None
    cap: float | Literal["auto"] = 25.0
    inner: Inner | None = None
    weights: dict[str, float] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)


class About(TypedDict):
    kind: str
    steps: NotRequired[int]


def test_a_mapping_becomes_an_instance_at_every_depth() -> None:
    value = {"name": "x", "rate": 2, "out": "a/b", "cap": "auto", "inner": {"sizes": [3, 4], "point": [1, 2]}}
    found = typed(Outer, value | {"weights": {"mitdb": 1}, "free": {"any": [None, {}]}})
    assert found.inner == Inner((3, 4), (1, 2.0)) and isinstance(found.inner.point[1], float)
    assert isinstance(found.rate, float) and found.out == Path("a/b") and found.cap == "auto" and found.count is None
    assert found.weights == {"mitdb": 1.0} and found.free == {"any": [None, {}]}


def test_a_typed_dictionary_keeps_what_it_does_not_name() -> None:
    about: About = typed(About, {"kind": "pretrain", "later": 1})
    assert about == {"kind": "pretrain", "later": 1}


WRONG: list[tuple[Any, Any, str]] = [
    (Outer, [], "[] found, fields with their values expected"),
    (Outer, {}, "name: nothing found, text expected"),
    (Outer, {"name": "x", "rat": 1}, "rat: found, but there is no such field: it is one of cap, count, "),
    (Outer, {"name": 3}, "name: 3 found, text expected"),
    (Outer, {"name": "x", "rate": True}, "rate: True found, a number expected"),
    (Outer, {"name": "x", "rate": "1"}, "rate: '1' found, a number expected"),
    (Outer, {"name": "x", "rate": float("nan")}, "rate: nan found, a number expected"),
    (Outer, {"name": "x", "rate": 10**400}, "rate: 1000"),
    (Outer, {"name": "x", "count": 1.0}, "count: 1.0 found, a whole number expected"),
    (Outer, {"name": "x", "count": 2**63}, "count: 9223372036854775808 found, a whole number expected"),
    (Outer, {"name": "x", "on": 1}, "on: 1 found, true or false expected"),
    (Outer, {"name": "x", "kind": ["a"]}, "kind: ['a'] found, one of a, b expected"),
    (Outer, {"name": "x", "out": "a\0b"}, "out: 'a\\x00b' found, a path expected"),
    (Outer, {"name": "x", "cap": "wide"}, "cap: 'wide' found, a number or one of auto expected"),
    (Outer, {"name": "x", "inner": {"sizes": [1, "2"]}}, "inner.sizes[1]: '2' found, a whole number expected"),
    (Outer, {"name": "x", "inner": {"sizes": [], "point": [1]}}, "inner.point: [1] found, a list of 2 "),
    (Outer, {"name": "x", "inner": 3}, "inner: 3 found, fields with their values expected"),
    (Outer, {"name": "x", "weights": {"a": None}}, "weights.a: None found, a number expected"),
    (Outer, {"name": "x", "weights": {1: 2.0}}, "weights.a key: 1 found, text expected"),
    (Outer, {"name": "x", 4: 1}, "4: found, but there is no such field"),
    (About, {"steps": 3}, "kind: nothing found, text expected"),
    (About, {"kind": "x", "steps": "3"}, "steps: '3' found, a whole number expected"),
    (list[About], [{"kind": "x"}, None], "[1]: None found, fields with their values expected"),
    (list[int], {}, "{} found, a list of a whole number expected"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), WRONG, ids=[expected for *_, expected in WRONG])
def test_what_does_not_fit_is_one_line_that_names_it(kind: Any, value: Any, expected: str) -> None:
    with pytest.raises(HeartlmError) as error:
        typed(kind, value, "a.json")
    assert str(error.value).startswith(f"a.json: {expected}")
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)
