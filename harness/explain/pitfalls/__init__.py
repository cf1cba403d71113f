"""The verb `pitfalls`: measures the effect of each mistake in preparing inputs."""
