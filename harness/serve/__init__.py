"""Serves a model over HTTP with the Open Inference Protocol, or a language model with OpenAI's API."""
