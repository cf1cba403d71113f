"""Language models that generate token by token, with a cache of keys and values."""
