"""Lists the endpoints of OpenAI's API that return something other than a language model's text."""

from collections.abc import Callable, Mapping

from harness.backends.parts.openai.images import Images
from harness.backends.parts.openai.plain import Plain
from harness.backends.parts.openai.sounds import Speech, Transcriptions
from harness.backends.parts.openai.vectors import Embeddings, Pooling, Rerank
from harness.types import BackendSetup

OTHERS: Mapping[str, Callable[[BackendSetup], Plain]] = {
    "embeddings": Embeddings,
    "pooling": Pooling,
    "rerank": Rerank,
    "transcriptions": Transcriptions,
    "speech": Speech,
    "images": Images,
}
"""Maps a value of --backend-option endpoint to its plug-in."""
