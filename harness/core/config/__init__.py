"""Configuration of a run: the schema for its options, their parsers, and RunConfig."""
