"""First steps: presets, option files, templates, schemas and completion."""
