"""What several plugins share: graph walking, symbolic sizes, layout, kernel helpers."""
