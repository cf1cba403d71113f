"""Serves a language model with OpenAI's API, with replies in vLLM's format."""
