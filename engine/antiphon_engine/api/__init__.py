"""All that other packages may import of the engine. Nothing here imports torch."""
