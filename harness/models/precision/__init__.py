"""Makes the same model in another precision: fp16 and int8, by file format."""
