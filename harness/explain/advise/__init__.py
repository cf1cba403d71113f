"""The verb `advise`: what would make the model faster, measured."""
