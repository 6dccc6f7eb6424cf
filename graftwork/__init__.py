"""Verified rewrites and CUDA kernels, as plugins, for lowering PyTorch models."""
