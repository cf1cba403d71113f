"""The configuration of a run: the schema of its options, their parsers, and RunConfig."""
