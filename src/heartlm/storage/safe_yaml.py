"""YAML for settings: finite numbers, no repeated keys, limited depth, and limited size with aliases expanded.

It is a separate module because importing PyYAML is slow.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, ScalarNode

from heartlm.storage.limits import TOO_DEEP, finite_float, limited, small_int

MAX_VALUES = 1_000_000
"""Maximum number of values at one depth of a file; the values of an alias count each time."""


def parse_yaml(text: str) -> Any:
    """Return the value of YAML `text`. As in YAML 1.2, 1e-3 is a number; a date is text.

    Raises:
        ValueError: the text is not YAML, or exceeds the limits of size and depth; the message is one line.
    """
    try:
        return limited(yaml.load(text, _Loader), MAX_VALUES)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except LookupError as error:  # PyYAML looks up the text of `!!bool maybe`, and the first character of `!!int ''`
        raise ValueError(f"a value does not fit its tag: {error}") from error


class _Loader(yaml.SafeLoader):
    _num_fields = 0

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Return the next mapping of the file; raise ConstructorError if it repeats a key."""
        node = super().compose_mapping_node(anchor)
        keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, ScalarNode))
        for (_, name), num in keys.items():
            if num > 1:
                raise ConstructorError(None, None, f"{name} found {num} times", node.start_mark)
        return node

    def flatten_mapping(self, node: MappingNode) -> None:
        """Merge the mappings of `<<` keys into `node`; PyYAML calls this for every mapping and every merged one."""
        super().flatten_mapping(node)
        self._num_fields += len(node.value)
        if self._num_fields > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values, merged ones expanded")


_FLOAT = "tag:yaml.org,2002:float"
_Loader.add_implicit_resolver(_FLOAT, re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))
_construct: Any = _Loader.add_constructor
_construct(_FLOAT, lambda loader, node: finite_float(loader.construct_yaml_float(node)))
_construct("tag:yaml.org,2002:int", lambda loader, node: small_int(loader.construct_yaml_int(node)))
_construct("tag:yaml.org,2002:timestamp", _Loader.construct_scalar)
