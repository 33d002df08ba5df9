"""Journals of a command that does recordings in parts: a line for each recording that is done.

    part 1/2 ─► .NAME-part-000001-000002.jsonl ─┐
    part 2/2 ─► .NAME-part-000002-000002.jsonl ─┴─► the command without --part ─► .NAME.jsonl ─► its results

Parts run at the same time, on machines that share the folder. The command without --part runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from heartlm.storage.atomic import locked
from heartlm.storage.reading import each_json_line
from heartlm.system.engine import PartOptions


@dataclass(frozen=True)
class Journals:
    """Journals in the folder of the results.

    Attributes:
        folder: folder of the results.
        name: name of the journals.
        options: part that this command does, if it does one.
    """

    folder: Path
    name: str
    options: PartOptions

    @property
    def stem(self) -> str:
        """Beginning of the names of hidden files of this command."""
        index, num_parts = self.options.part_of
        return f".{self.name}" if self.options.part is None else f".{self.name}-part-{index + 1:06d}-{num_parts:06d}"

    @property
    def own(self) -> Path:
        """Journal of this command."""
        return self.folder / f"{self.stem}.jsonl"

    @property
    def whole(self) -> Path:
        """Journal of the command without --part."""
        return self.folder / f".{self.name}.jsonl"

    def of_parts(self) -> list[Path]:
        """Return the journals of all parts that there are."""
        return sorted(self.folder.glob(f".{self.name}-part-*.jsonl"))

    def remove_parts(self) -> None:
        """Remove the journals of all parts, and the locks of those that were killed."""
        for path in self.folder.glob(f".{self.name}-part-*"):
            if path.suffix in (".jsonl", ".lock"):
                path.unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder until the block or the process ends: a part with other parts, the whole command alone.

        Raises:
            HeartlmError: another command holds it.
        """
        shared, part = self.folder / f".{self.name}.lock", self.options.part
        with ExitStack() as stack:
            if part is None:
                message = f"{self.folder}: another command, or a part of one, writes to it; wait for its end"
                stack.enter_context(locked(shared, message))
                stack.callback(shared.unlink, missing_ok=True)
            else:  # the lock that parts share stays for the others
                message = f"{self.folder}: a command without --part writes to it; wait for its end"
                stack.enter_context(locked(shared, message, is_shared=True))
                own = self.folder / f"{self.stem}.lock"
                stack.enter_context(locked(own, f"{self.folder}: another command does part {part}; wait for its end"))
                stack.callback(own.unlink, missing_ok=True)
            yield


def header_of(journal: Path) -> dict[str, Any]:
    """Return the first line of a journal, which tells what it is of; empty if there is none."""
    return next(islice(each_json_line(journal), 1), {}) if journal.is_file() else {}
