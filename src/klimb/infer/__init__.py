"""Inference. ``klimb.infer(latent, site, y)`` is the engine; the package behind the name holds its parts."""

import sys
from types import ModuleType
from typing import Any, final

from klimb.infer.loop import infer as _infer
from klimb.infer.result import History, Iteration, Result, Status

__all__ = ["History", "Iteration", "Result", "Status"]


@final
class _CallableModule(ModuleType):
    """Lets ``klimb.infer`` be both the function and the package that implements it."""

    __wrapped__ = staticmethod(_infer)  # help() and inspect.signature() show the function

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        return _infer(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
__doc__ = str(_infer.__doc__)  # what help(klimb.infer) should show
