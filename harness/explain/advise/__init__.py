"""The verb `advise`: finds and measures settings that make a model faster."""
