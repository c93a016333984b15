"""Step rules: how far to go. ``Natural()`` is the default."""

from klimb.infer.natural import Natural

__all__ = ["Natural"]
