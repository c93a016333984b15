"""The cases of the benchmarks: what is given, who solves it, and how answers are judged."""
