"""Serves a language model with OpenAI's API. The answers have the same format as vLLM's answers."""
