"""Official client: its environment, configuration and runs."""
