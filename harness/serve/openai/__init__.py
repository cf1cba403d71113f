"""Serves a language model with OpenAI's API, and gives the same answers as vLLM."""
