"""Commands of extensions, which plug in by entry points; `cli/main.py` has those of the core.

    pyproject.toml      [project.entry-points."heartlm.extensions"]
                        ward = "heartlm_ward:COMMANDS"

    heartlm_ward        COMMANDS = {"ward": ("heartlm_ward.command:run", "one line for heartlm --help")}

`heartlm --help` imports the module of the table, so it should import nothing; the command's module is imported when the
command runs. The core's commands do not depend on any of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from heartlm.cli.subcommands import Subcommands
from heartlm.system.entry_points import entry_points

GROUP = "heartlm.extensions"
"""Group of the entry points; each is a table of commands."""


class Registered(NamedTuple):
    """Commands of the installed extensions.

    Attributes:
        commands: location, as `module:function`, and summary of each command, by name.
        faults: a line for each extension that is left out, in full or in part.
    """

    commands: Subcommands
    faults: list[str]


def registered(taken: Collection[str]) -> Registered:
    """Return the commands of the installed extensions; a name that is `taken`, or that an earlier one has, is left out.

    A fault in an extension is a line of the result, not an error: the other commands work without it.
    """
    commands, faults = dict[str, tuple[str, str]](), list[str]()
    for point in entry_points(GROUP):
        try:
            table = {str(name): (str(where), str(summary)) for name, (where, summary) in point.load().items()}
        except Exception as error:  # of code that is not ours
            faults.append(f"extension {point.name} ({point.distribution}) is left out: {error!r}")
            continue
        for name, command in table.items():
            if name in taken or name in commands:
                faults.append(f"extension {point.name} ({point.distribution}): there is a command {name} already")
            else:
                commands[name] = command
    return Registered(commands, faults)
