"""The bundled example: who reaches the summit? Run it with ``python -m klimb.demo``."""

from klimb.demo.data import load_summit

__all__ = ["load_summit"]
