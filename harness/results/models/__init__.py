"""The part of a result about several models and their cache."""
