"""The plugin contract: hook specifications, registry, selection, options, properties."""
