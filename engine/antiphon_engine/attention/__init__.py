"""Attention over the paged KV cache: one Protocol, an implementation a device."""
