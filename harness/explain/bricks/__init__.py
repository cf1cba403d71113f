"""The verb `bricks`: computes models' times from distinct layer sequences."""
