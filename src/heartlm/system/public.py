"""How a function of the public interface is called: quietly, and with an error that names what is missing."""

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
    """Wrap `function`: print only inside of `show_progress()`, and name the package to install if torch is missing.

    Its signature names the settings that it takes as `Unpack[...Settings]`, with the defaults of the `...Config` of the
    same module, so that `help` and notebooks complete them.
    """

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with quiet(), needs("train", "torch"):
            return function(*arguments, **named)

    signature = inspect.signature(function)
    *first, last = signature.parameters.values()
    if last.kind is last.VAR_KEYWORD:
        settings: Any = function.__globals__[last.annotation.removeprefix("Unpack[").removesuffix("]")]
        config = getattr(inspect.getmodule(settings), settings.__name__.replace("Settings", "Config"))
        fields = [
            inspect.Parameter(name, last.KEYWORD_ONLY, default=getattr(config, name, {}), annotation=hint)
            for name, hint in settings.__annotations__.items()
        ]
        run.__signature__ = signature.replace(parameters=[*first, *fields])  # type: ignore[attr-defined]
    return run
