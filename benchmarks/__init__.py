"""Benchmarks of klimb: problems, rivals, floors and the scripts that put them side by side. Not part of the wheel.

Every figure is CPU time of one process (``time.process_time``) with one BLAS thread, the median of several repeats.
"""
