"""What a run of several models says about them and their cache."""
