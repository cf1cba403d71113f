"""The verb `cold`: the time until a new process gives its first answer, by phase."""
