"""The advice as text, as a page, and as files that apply it."""
