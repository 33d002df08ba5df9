"""YAML for settings: finite numbers, no repeated keys, limited depth, and limited size with aliases expanded.

It is a separate module because importing PyYAML is slow.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from heartlm.files import MAX_DEPTH, finite_float, small_int

MAX_NODES = 1_000_000
"""Maximum number of values in a file; the values of an alias count each time."""


def parse_yaml(text: str) -> Any:
    """Return the value of YAML `text`. As in YAML 1.2, 1e-3 is a number; a date is text.

    Raises:
        ValueError: the text is not YAML, or exceeds the limits of size and depth; the message is one line.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


_TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[Node, tuple[int, int]] = {}
        """Number of values in each finished node, with aliases expanded, and its depth."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Return the next node of the file; raise ConstructorError if it has too many values or contains itself."""
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None or (is_alias and node in self._sizes):
            return node
        below: list[Any] = [] if isinstance(node, ScalarNode) else node.value
        if isinstance(node, MappingNode):
            keys = [(key.tag, key.value) for key, _ in below if isinstance(key, ScalarNode)]
            for twice in {key for key in keys if keys.count(key) > 1} if len({*keys}) < len(keys) else ():
                raise _refused(f"{twice[1]} stands there twice", node)
            below = [each for pair in below for each in pair]
        if is_alias:
            raise _refused("an alias of what it stands in", node)
        num_values = 1 + sum(self._sizes[each][0] for each in below)
        depth = 1 + max((self._sizes[each][1] for each in below), default=0)
        if num_values > MAX_NODES:
            raise _refused(f"more than {MAX_NODES} values, aliases expanded", node)
        if depth > MAX_DEPTH:
            raise _refused(_TOO_DEEP, node)
        self._sizes[node] = num_values, depth
        return node

    def construct_whole(self, node: Any) -> int:
        """Return a 64-bit integer."""
        return small_int(self.construct_yaml_int(node))

    def construct_finite(self, node: Any) -> float:
        """Return a finite number."""
        return finite_float(self.construct_yaml_float(node))

    def construct_date(self, node: Any) -> Any:
        """Return a date as text."""
        return self.construct_scalar(node)


def _refused(problem: str, node: Node) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)


_FLOAT = "tag:yaml.org,2002:float"
_Loader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_constructor(_FLOAT, _Loader.construct_finite)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_date)
