"""The verb `sweep` over settings: batch, precision, threads, frameworks."""
