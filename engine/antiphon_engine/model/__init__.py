"""The models: plain modules, their configuration and the loading of their weights."""
