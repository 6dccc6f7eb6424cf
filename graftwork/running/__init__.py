"""Runs what was lowered, from Python: `graftwork.load`."""
