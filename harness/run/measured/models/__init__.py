"""A set of models in one run: the dataset, the backend and the instances of LoadGen's only SUT."""
