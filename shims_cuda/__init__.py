"""CUDA kernel families in Triton, one file or folder each."""
