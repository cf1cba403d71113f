"""The verb `overhead`: what serving a model costs."""
