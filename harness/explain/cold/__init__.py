"""The verb `cold`: what the first answer of a fresh process costs, and where that time goes."""
