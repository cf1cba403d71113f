"""Describes JSON services over HTTP as manifests for the backend `http-json`, based on the pages that the services
provide.
"""
