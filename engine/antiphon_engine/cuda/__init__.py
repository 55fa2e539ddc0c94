"""Models on CUDA devices: own kernels, launched over buffers that are allocated once."""
