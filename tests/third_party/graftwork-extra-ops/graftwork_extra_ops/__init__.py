"""Plugins for Graftwork, from another distribution than Graftwork's own."""
