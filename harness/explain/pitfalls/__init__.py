"""The verb `pitfalls`: the cost of each mistake in preparing inputs."""
