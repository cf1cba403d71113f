"""The first steps: presets and files of options, templates, schemas, completion."""
