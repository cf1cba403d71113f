"""One run in two processes, which share only the journal."""
