"""The verb `cold`: measures each phase until a new process gives its first answer."""
