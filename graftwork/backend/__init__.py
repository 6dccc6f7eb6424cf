"""Composes the enabled plugins at lowering time."""
