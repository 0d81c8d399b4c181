"""Leaves: compiled passes and BLAS calls that know arrays and nothing else."""
