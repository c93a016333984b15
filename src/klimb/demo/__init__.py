"""The bundled example: who reaches the summit? ``klimb demo`` runs it."""

from klimb.demo.run import load_summit

__all__ = ["load_summit"]
