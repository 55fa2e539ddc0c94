"""Models on the CPU by the project's own kernels: a model is a program of `_kernels`."""
