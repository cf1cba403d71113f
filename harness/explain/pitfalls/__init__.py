"""The verb `pitfalls`: measures how common input-preparation mistakes change a model's answers."""
