"""The verb `cold`: the time of a fresh process's first answer, by phase."""
