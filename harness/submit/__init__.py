"""Turns runs into a submission folder in four steps: plan, run, pack, check (docs/submit.md)."""
