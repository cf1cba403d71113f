"""The verb `bricks`: computes the times of models from the times of distinct layer sequences."""
