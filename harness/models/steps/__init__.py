"""The preprocessing and postprocessing steps that a manifest declares."""
