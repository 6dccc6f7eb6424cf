"""x."""

from graftwork.plugins import Property

PROPERTIES: list[Property] = []
