"""Slurm 22.05 to 26.05: what its commands say, read without guessing.

`states`, `hostlist`, `gres` and `values` read single values, `records` whole nodes and jobs
from the documented JSON and text forms. All of these are pure.
"""
