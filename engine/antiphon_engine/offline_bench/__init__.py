"""Measures an engine in its own process, without a front end: `antiphon bench offline`."""
