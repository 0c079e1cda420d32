"""What ``scripts/generate-docs`` does: documentation tables and byte vectors from the definitions."""
