"""Packs finished runs into a submission tree."""
