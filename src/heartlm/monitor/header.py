"""Write the part of kernels.h that follows from the tables of alarms and limits: `make header`.

The tables are `ALARMS` of heartlm.ecg.definitions, `AlarmRules` of heartlm.monitor.alarms and `LIMITS` of
heartlm.monitor.rules. C code takes kinds and limits by their names, so that their order in the tables decides nothing.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import heartlm.kernels
from heartlm.ecg.definitions import ALARMS
from heartlm.monitor.alarms import AlarmRules
from heartlm.monitor.rules import c_name, limits_of
from heartlm.storage.atomic import write_text

HEADER = Path(heartlm.kernels.__file__).with_name("kernels.h")
_BEGIN, _END = "/* Written by heartlm.monitor.header, from its tables. */\n", "/* End of what it writes. */\n"
_C_TYPES = {int: "int64_t", float: "double"}


def declarations() -> str:
    """Return the enum of the kinds of alarms, whose values are their bits, and the struct of the limits."""
    fields = dict[str, list[str]]()
    for name, value in limits_of(AlarmRules(), 1.0).items():
        kind, length = _kind_and_length(value)
        fields.setdefault(kind, []).append(name + length)
    enum = f"enum kinds {{ {', '.join([*map(c_name, ALARMS), 'KINDS'])} }};"
    struct = [f"    {kind} {', '.join(names)};" for kind, names in fields.items()]
    wrapped = [textwrap.fill(line, 120, subsequent_indent=" " * 8) for line in (enum, "struct rules {", *struct, "};")]
    return "\n".join(wrapped) + "\n"


def _kind_and_length(value: Any) -> tuple[str, str]:
    if not isinstance(value, tuple):
        return _C_TYPES[type(value)], ""
    return _C_TYPES[type(value[0])], f"[{'KINDS' if len(value) == len(ALARMS) else len(value)}]"


def updated(header: str) -> str:
    """Return the text of kernels.h with the declarations of the tables."""
    before, _, rest = header.partition(_BEGIN)
    return before + _BEGIN + declarations() + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    write_text(HEADER, updated(HEADER.read_text(encoding="utf-8")))
