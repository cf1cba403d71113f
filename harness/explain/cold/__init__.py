"""The verb `cold`: measures each phase from the start of a new process to its first answer."""
