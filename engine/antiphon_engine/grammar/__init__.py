"""Grammars: what the engine enforces of an output while it is drawn."""
