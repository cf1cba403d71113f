"""The measured process, which prepares the model, answers queries and writes the journal."""
