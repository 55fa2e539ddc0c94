"""Conversations that live on the server: their log, their turns and the streams that drive them."""
