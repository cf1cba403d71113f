"""The verb `overhead`: the cost of serving a model."""
