"""The measured process: prepares, answers queries, writes the journal."""
