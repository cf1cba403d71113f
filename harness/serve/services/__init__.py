"""Describes JSON services over HTTP from the pages that they serve, as manifests for the backend `http-json`."""
