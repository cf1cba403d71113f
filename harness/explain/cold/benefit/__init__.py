"""Whether sharing a model's weights pays, estimated beforehand and checked."""
