"""Language models that answer token by token, with a cache of keys and values."""
