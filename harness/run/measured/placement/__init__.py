"""Which threads answer: an instance on all cores for a lone query, or fewer threads than cores."""
