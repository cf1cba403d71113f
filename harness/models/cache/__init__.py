"""A cache of models: what stays in memory or in local files when more models are asked for than fit."""
