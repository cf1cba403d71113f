"""File formats read without their libraries."""
