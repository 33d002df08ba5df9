"""How the public interface is called and shown: quietly, with errors that name what is missing, with plain types."""

from __future__ import annotations

import builtins
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from heartlm.errors import needs
from heartlm.system.progress import quiet

# Names and texts in an annotation; the fields of a name do not count.
_WORD, _TEXT = re.compile(r"(?<![\w.])[A-Za-z_]\w*"), re.compile(r"""(["']).*?\1""")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def public(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap `function`: print only inside of `show_progress()`, and name the package to install if torch is missing."""

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with quiet(), needs("train", "torch"):
            return function(*arguments, **named)

    return run


class _Plain(str):
    """An annotation that is not evaluated, which signatures show as code instead of a quoted text."""

    def __repr__(self) -> str:
        return str(self)


class _Unknown:
    """An annotation with names that are not imported, which `inspect.signature` leaves as it is with `eval_str`."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __repr__(self) -> str:
        return self._code


def show_plain_types(shown: Any) -> None:
    """Let `inspect.signature` and notebooks show the types of a function, or of all methods of a class, as code."""
    if inspect.isclass(shown):
        members = [
            each for base in shown.__mro__ if base.__module__.startswith("heartlm") for each in vars(base).values()
        ]
        members = [getattr(each, "fget", None) or getattr(each, "__func__", each) for each in members]
        functions = [each for each in members if inspect.isfunction(each)]
    else:
        functions = [inspect.unwrap(shown)]
    for function in functions:
        for name, annotation in function.__annotations__.items():
            if isinstance(annotation, str):
                code = annotation.replace("AnyPath", "str | Path")
                known = function.__globals__.keys() | vars(builtins).keys()
                is_known = known >= set(_WORD.findall(_TEXT.sub("", code)))
                function.__annotations__[name] = _Plain(code) if is_known else _Unknown(code)
