"""The verb `advise`: measured ways to make the model faster."""
