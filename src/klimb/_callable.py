"""Packages that can be called: ``klimb.infer(...)`` and ``klimb.trust(...)`` are functions and packages at once."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(package: str, function: Callable[..., Any]) -> None:
    """Let the package of this name be called like ``function``; help() and inspect.signature() show the function."""

    class CallableModule(ModuleType):
        __wrapped__ = staticmethod(function)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    module = sys.modules[package]
    module.__class__ = CallableModule
    module.__doc__ = function.__doc__
