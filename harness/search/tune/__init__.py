"""The verb `tune`: the placement that suits model and machine."""
