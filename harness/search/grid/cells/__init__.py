"""The cells of a grid: options, axes, folder."""
