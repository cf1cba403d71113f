"""The verb `profile`: time by stage, layer and kernel."""
