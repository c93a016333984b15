"""Inference. ``klimb.infer(latent, site, y)`` is the engine; the package behind the name holds its parts."""

from klimb._callable import make_callable
from klimb.infer.loop import infer as _infer
from klimb.infer.result import History, Iteration, Result, Status

__all__ = ["History", "Iteration", "Result", "Status"]

make_callable(__name__, _infer)
