"""The error for a prompt that does not suit the section `generation` of the manifest."""


class UnfitPrompt(ValueError):
    """A server tells its client only the text. A run, whose user wrote the manifest, also shows the remedy."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy
