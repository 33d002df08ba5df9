"""Where commands are, and commands with subcommands, such as `heartlm data list`."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence

from heartlm.errors import HeartlmError

Subcommands = Mapping[str, tuple[str, str]]
"""Location, as `module:function`, and summary of each subcommand, by name."""


def nearest(name: str, commands: Collection[str]) -> str:
    """Return a question that suggests the command most like `name`, or the list of commands if there is none."""
    import difflib  # only for a mistake: `heartlm --help` loads little

    similar = difflib.get_close_matches(name.lower(), commands, n=1)
    return f"did you mean {similar[0]}?" if similar else f"it is one of {', '.join(commands)}"


def run_subcommand(command: str, subcommands: Subcommands, arguments: Sequence[str], more: str = "") -> int:
    """Run the subcommand named by `arguments` and return its status; without one, print the list, then `more`."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, subcommands))
        print(f"usage: heartlm {command} COMMAND [options]        heartlm {command} COMMAND --help  explains one\n")
        print("\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in subcommands.items()))
        if more:
            print(f"\n{more}")
        return 0
    if arguments[0] not in subcommands:
        raise HeartlmError(f"no command '{command} {arguments[0]}'; {nearest(arguments[0], subcommands)}")
    return run_located(subcommands[arguments[0]][0], arguments[1:])


def run_located(where: str, arguments: Sequence[str]) -> int:
    """Import the function at `where`, `module:function`, call it with `arguments` and return its status."""
    module, _, function = where.partition(":")
    status: int = getattr(importlib.import_module(module), function)(arguments)
    return status
