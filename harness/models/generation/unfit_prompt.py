"""The error for a prompt that does not match the manifest's section `generation`."""


class UnfitPrompt(ValueError):
    """A server reports only the text to its client. A run, whose user wrote the manifest, also reports the remedy."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy
