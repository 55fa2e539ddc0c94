"""Checkpoints on disk: found, fetched, converted. Only converting needs torch."""
