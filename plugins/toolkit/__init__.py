"""What several plugins share: symbolic sizes, layouts, sub-graphs, kernel helpers."""
