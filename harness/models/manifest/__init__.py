"""Model manifests: schema, files and checksums, hooks, requirements."""
