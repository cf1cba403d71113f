"""Describes JSON services over HTTP, based on the pages that they serve, as manifests for the backend `http-json`."""
