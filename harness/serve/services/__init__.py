"""Describes services of JSON over HTTP by their own pages, as manifests for backend `http-json`."""
