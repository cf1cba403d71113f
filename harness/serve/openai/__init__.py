"""Serves a language model by the API of OpenAI, as vLLM answers it."""
