"""The verb `peak`: the highest VALID rate."""
