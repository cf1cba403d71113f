"""A set of models in one run: the dataset, the backend and the instances behind LoadGen's one SUT."""
