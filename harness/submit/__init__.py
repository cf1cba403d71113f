"""From runs to a submission folder: plan, run, pack, check (docs/submit.md)."""
