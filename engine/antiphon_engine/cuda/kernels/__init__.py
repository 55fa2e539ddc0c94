"""Kernels in Triton. Imported where a CUDA device computes, and by their tests; nowhere else."""
