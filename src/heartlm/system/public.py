"""How a function of the public interface is called: quietly, and with an error that names what is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
