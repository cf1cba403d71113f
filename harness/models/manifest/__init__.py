"""Model manifests: schema, parsing, look-up by name, files and checksums, hooks and requirements."""
