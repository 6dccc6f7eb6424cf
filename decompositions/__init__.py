"""Decompositions, one file each."""
