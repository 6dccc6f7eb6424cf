"""Steps that several kernel families are made of; each file holds its kernels and their launch."""
