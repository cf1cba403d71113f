"""Serves a language model with OpenAI's API, with the same answers as vLLM."""
