"""Defines the cells of a grid: options, axes and folders."""
