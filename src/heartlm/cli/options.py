"""Command-line options from documented dataclasses.

Every command declares one dataclass: its fields are the options, their types are checked, and its docstring is the
help text. A YAML file can set the same fields. jsonargparse does the parsing. This module adds positional fields,
examples in `--help`, one-line errors that name the field, and the options of all commands that open recordings.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import typing
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from docstring_parser import Docstring
from docstring_parser import parse as parse_docstring
from jsonargparse import ActionConfigFile, ActionYesNo, ArgumentError, ArgumentParser, set_loader
from jsonargparse import DefaultHelpFormatter as JsonargparseFormatter

from heartlm.ecg.definitions import LIMITS
from heartlm.errors import HeartlmError
from heartlm.sources.address import SourcePath, local_output, output_path, source_path
from heartlm.sources.cache import DEFAULT_GB, FOLDER, SIZE_GB, cache_bytes
from heartlm.storage.reading import read_yaml
from heartlm.storage.safe_yaml import parse_yaml

set_loader("safe", parse_yaml, exceptions=(ValueError,))

Options = TypeVar("Options")


class _Parser(ArgumentParser):
    """Parser that prints options with hyphens and accepts hyphens and underscores."""

    def format_help(self, *arguments: Any, **named: Any) -> str:
        """Return the help text, with hyphens in option names."""
        return _hyphenated(super().format_help(*arguments, **named))


def _hyphenated(text: str) -> str:
    return re.sub(r"--\w+", lambda option: option[0].replace("_", "-"), text)


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return name[:2] + name[2:].replace("-", "_") + equals + value if word.startswith("--") else word


class _Formatter(JsonargparseFormatter, RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of the description and of the examples."""


def parse(
    options: type[Options],
    arguments: Sequence[str],
    command: str,
    run: Callable[..., int] | None = None,
    *,
    positionals: Sequence[str] = (),
    config_file: bool = False,
    opens_recordings: bool | None = None,
) -> Options:
    """Parse `arguments` into an instance of the dataclass `options`.

    Args:
        options: a dataclass whose docstring has an `Attributes:` section with one entry per field.
        arguments: command-line arguments after the command's name.
        command: command name in the usage line, for example `"data simulate"`.
        run: the command's function; its docstring is the description in `--help`, its `Examples:` section the end.
        positionals: fields that are positional arguments; a list-typed field takes one or more.
        config_file: accept a YAML file, as first argument or as `--config FILE`; command-line options override it.
        opens_recordings: whether the command has the options of `OPEN_RECORDINGS`; by default if it is one of these.

    Raises:
        HeartlmError: an option is unknown, or a value is missing or invalid; the text names the field.
    """
    parser = _parser(options, command, parse_docstring((run and run.__doc__) or ""), positionals, config_file)
    if opens_recordings is None:
        opens_recordings = command in OPEN_RECORDINGS
    if opens_recordings:
        _add_stated(parser, options)
    words = [_underscored(word) for word in arguments]
    if config_file and words and not words[0].startswith("-"):
        words.insert(0, "--config")
    for before, word in pairwise(words):
        if before == "--config":
            content = read_yaml(Path(word), "a YAML file of settings")
            if not isinstance(content, dict):
                raise HeartlmError(f"{word}: fields with their values expected, for example  steps: 1000")
    try:
        values = parser.parse_args(words).as_dict()
    except (ArgumentError, TypeError, ValueError) as error:
        text = " ".join(_hyphenated(str(error)).split())  # jsonargparse writes several lines
        for pattern, plain in _PLAIN_WORDS:
            text = re.sub(pattern, plain, text)
        raise HeartlmError(f"{text}  (see heartlm {command} --help)") from error
    values.pop("config", None)
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = source_path(value)
        elif isinstance(value, list):
            values[name] = [source_path(each) if isinstance(each, Path) else each for each in value]
    if isinstance(out := values.get("out"), SourcePath):
        writes_there = command == "tokenize" or values.get("tables") == "parquet"
        values["out"] = output_path(out) if writes_there else local_output(out)
    if opens_recordings:
        _state(options, values)
    return options(**values)


def limit_options(defaults: dict[str, float]) -> type[Any]:
    """Return a dataclass with an option for each of `LIMITS`, None if it is not given, and with its help."""
    kinds = {name: int if name.endswith("_beats") else float for name in LIMITS}
    fields = [(name, kind | None, dataclasses.field(default=None)) for name, kind in kinds.items()]
    helps = (f"    {name}: {limit.meaning}; {defaults[name]:g} by default." for name, limit in LIMITS.items())
    text = "\n".join(["Limits of the rules.", "", "Attributes:", *helps])
    return dataclasses.make_dataclass("LimitOptions", fields, frozen=True, namespace={"__doc__": text})


def given_limits(options: Any) -> dict[str, Any]:
    """Return the values of the options of `limit_options` that are given."""
    return {name: value for name, value in vars(options).items() if name in LIMITS and value is not None}


OPEN_RECORDINGS = frozenset(
    ("alarms", "analyze", "compare", "data convert", "data index", "data show", "data verify",
     "delineate", "embed", "evaluate", "monitor", "predict", "review", "tokenize")
)  # fmt: skip
"""Commands of the core with the options `--rate`, `--units` and `--leads`, which state what files of recordings do not
state; commands of extensions ask for them by `opens_recordings`."""


def _add_stated(parser: ArgumentParser, options: type[Any]) -> None:
    group = parser.add_argument_group("recordings whose files do not state it (tables, arrays; units: EDF, WFDB too)")
    group.add_argument("--rate", type=float, help="sampling rate in Hz")
    group.add_argument(
        "--units",
        type=str,
        help="unit of the leads, or a comma-separated list of units: mV, uV, V, or steps of a converter as 200/mV or "
        "200(1024)/mV, with the step of 0 mV",
    )
    if "leads" not in {field.name for field in dataclasses.fields(options)}:
        group.add_argument(
            "--leads", type=str, help="comma-separated leads to read, or names for the leads of a file that has none"
        )

    group = parser.add_argument_group("recordings at addresses (s3://, gs://, az://, hf://, https://) and of an index")
    group.add_argument("--where", type=str, help='of an index, recordings with, e.g., "duration_s >= 10"')
    group.add_argument("--cache", type=Path, help="folder in which what was read from addresses is kept")
    group.add_argument("--cache-gb", type=float, help=f"its largest size, by default {DEFAULT_GB:g}")


def _state(options: type[Any], values: dict[str, Any]) -> None:
    """State the rate, units and leads for all recordings that the command opens, and remove them from `values`."""
    from heartlm.formats.plausible import RATES_HZ
    from heartlm.formats.stated import Stated
    from heartlm.formats.units import parse_unit

    rate_hz, units = values.pop("rate"), _listed(values.pop("units"))
    is_field = any(field.name == "leads" for field in dataclasses.fields(options))
    leads = values["leads"] if is_field else values.pop("leads")
    if rate_hz is not None and not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        raise HeartlmError(f"rate: {rate_hz:g} found, samples a second expected, {RATES_HZ[0]:g} to {RATES_HZ[1]:g}")
    if unknown := [text for text in units if parse_unit(text) is None]:
        raise HeartlmError(f"units: {unknown[0]!r} found, expected a unit such as mV, uV or 200/mV (steps per mV)")
    Stated(rate_hz, units, _listed(leads)).export()
    # in the environment, which worker processes have too
    for variable, name in (("HEARTLM_WHERE", "where"), (FOLDER, "cache"), (SIZE_GB, "cache_gb")):
        value = values.pop(name)
        if value is not None:
            os.environ[variable] = str(value)
        elif name == "where":
            os.environ.pop(variable, None)
    cache_bytes()


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _parser(
    options: type[Any], command: str, explained: Docstring, positionals: Sequence[str], config_file: bool
) -> ArgumentParser:
    examples = next((each.description or "" for each in explained.examples), "")
    parser = _Parser(
        prog=f"heartlm {command}",
        usage=" ".join([f"heartlm {command}", *(name.upper() for name in positionals), "[options]"]),
        description=explained.description,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
        formatter_class=_Formatter,
        exit_on_error=False,
        parser_mode="safe",
        default_env=False,
        print_config=None,
    )
    hints = typing.get_type_hints(options)
    fields = {field.name: field for field in dataclasses.fields(options)}
    documented = {
        entry.arg_name: entry.description
        for ancestor in reversed(options.__mro__)
        for entry in parse_docstring(ancestor.__doc__ or "").params
    }
    for name in positionals:
        extra: dict[str, Any] = {}
        hint = hints[name]
        if typing.get_origin(hint) is list:
            hint, extra["nargs"] = typing.get_args(hint)[0], "+"
        elif fields[name].default is not dataclasses.MISSING:
            extra.update(nargs="?", default=fields[name].default)
        parser.add_argument(name, type=hint, help=documented.get(name), **extra)
    if config_file:
        parser.add_argument("--config", action=ActionConfigFile, help="a YAML file with any of these fields")
    flags = {name for name in fields if hints[name] in (bool, bool | None)}
    parser.add_class_arguments(options, None, skip=flags | set(positionals), as_group=False)
    for name in sorted(flags):
        parser.add_argument(f"--{name}", action=ActionYesNo, default=fields[name].default, help=documented.get(name))
    return parser


# Patterns in error messages of jsonargparse, and their replacements.
_PLAIN_WORDS = (
    (r"Parser key ", ""),
    (
        r"Does not validate against any of the Union subtypes.*?Errors: - (.*?)( - .*)? Given value type: .*? "
        r"Given value:",
        r"\1. Got value:",
    ),
    (r"typing\.Literal\[(.*?)\]", r"one of \1"),
    (r"Expected a one of", "Expected one of"),
    (r"<class 'float'>", "number"),
    (r"<class 'int'>", "whole number"),
    (r"<class 'dict'>", "mapping, such as {name: 1}"),
)


def given_to_resume(arguments: Sequence[str], layout: Collection[str], what: str) -> list[str]:
    """Return the names of the settings in `arguments` next to `resume`, when a `what` is resumed.

    Raises:
        HeartlmError: a setting is not in `layout`, the settings that may change when resuming.
    """
    words = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")]
    names = [word.removeprefix("no_") for word in words if word != "resume"]
    names += [word for word in arguments[:1] if not word.startswith("--")]
    if refused := [name for name in names if name not in layout]:
        raise HeartlmError(
            f"{refused[0]}: cannot change when a {what} is resumed: give --resume alone, or with {', '.join(layout)}"
        )
    return names


def seconds(text: str, option: str) -> float:
    """Return a time in seconds that is given as seconds, m:ss or h:mm:ss; a plus sign before it is allowed.

    Raises:
        HeartlmError: `text` is none of these; the message names `option`.
    """
    parts = re.fullmatch(r"\+?(?:(\d{1,6}):(?=[0-5]?\d:))?(\d{1,6}):([0-5]\d(?:\.\d*)?)", text)
    if parts is not None:
        hours, minutes, rest = map(float, parts.groups("0"))
        return 3600 * hours + 60 * minutes + rest
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise HeartlmError(f"{option} is {text!r}; expected seconds, m:ss or h:mm:ss, for example 1485 or 0:24:45")


def check_out(out: Path | None, *inputs: Path | None, ending: str | None = None) -> None:
    """Check the name of an output file.

    Args:
        out: output file; None is accepted.
        inputs: files and folders that the command reads and must not change; None is skipped.
        ending: required ending of the name.

    Raises:
        HeartlmError: `out` has another ending, is one of `inputs`, or exists in a folder of `inputs`.
    """
    if out is None:
        return
    if ending is not None and out.suffix != ending:
        raise HeartlmError(f"out: {out} found, a name that ends in {ending} expected")
    for path in inputs:
        if path is not None and out.is_file() and out.resolve().is_relative_to(path.resolve()):
            where = "exists in" if path.is_dir() else "is"
            raise HeartlmError(f"out: {out} {where} the input {path}: choose another name")


def existing(path: Path, what: str) -> Path:
    """Return `path` if it exists.

    Raises:
        HeartlmError: `path` does not exist; the text names `what` was expected.
    """
    if not path.exists():
        raise HeartlmError(f"{path}: no such {what}")
    return path
