"""How the public interface is called and shown: quietly, with errors that name what is missing, with plain types."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from heartlm.errors import needs
from heartlm.system.progress import quiet

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
                function.__annotations__[name] = _Plain(annotation.replace("AnyPath", "str | Path"))
