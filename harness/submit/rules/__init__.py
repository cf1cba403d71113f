"""The rules of a submission tree, checked."""
