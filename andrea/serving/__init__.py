"""Serving: a model behind the OpenAI interface, with many requests written in one batch."""
