"""The verb `profile`: measures time by stage, layer and kernel."""
