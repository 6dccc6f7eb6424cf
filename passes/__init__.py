"""Graph rewrites, one file each."""
