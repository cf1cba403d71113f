"""Inclusive bucket boundaries for OpenTelemetry's histograms about generative AI.

Source: open-telemetry/semantic-conventions-genai 004902b8, docs/gen-ai/gen-ai-metrics.md.
"""

import numpy as np

from harness.types import Array

SECONDS_NS: Array = 10_000_000 * 2 ** np.arange(14)
"""Boundaries for times in ns: 10 ms to 81.92 s."""

TOKENS: Array = 4 ** np.arange(14)
