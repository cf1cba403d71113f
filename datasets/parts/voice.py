"""Synthesises mono speech and other sounds, float32 at 16 kHz, with the same arithmetic on every machine.

Speech consists of syllables with a consonant and a vowel. A voiced sound is a sum of harmonics, whose pitch moves. The
strengths of the harmonics follow the resonances (formants) of the vowel. Hisses and bursts are filtered noise. The
formants of the vowels are averages over measured speakers: G. E. Peterson and H. L. Barney, "Control Methods Used in a
Study of the Vowels" (1952). Other sounds are noise, tones, chords, clicks and hum.
"""

from collections.abc import Sequence

import numpy as np

from harness.types import Array

RATE_HZ = 16_000
_CONTROL_HZ = 200
"""Number of values per second for pitch, loudness and formants. Between these values, pitch, loudness and formants
change linearly.
"""

_VOWELS_HZ = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
    (570, 840, 2410),
    (660, 1720, 2410),
    (440, 1020, 2240),
    (390, 1990, 2550),
    (490, 1350, 1690),
)
"""First three formants of men's vowels."""

_WIDTHS_HZ = np.array([80.0, 100.0, 150.0, 250.0])
_FOURTH_HZ = 3500.0
_HISSES_HZ = ((3500, 7500), (2000, 6000), (1200, 7000), (4500, 7800))
"""Frequency bands of the hisses in s, sh, f and th."""

_NASAL_HZ = (260, 1100, 2100)
_MOST_HZ = 7600.0
"""Harmonics above this frequency are omitted."""


def speech(random: np.random.RandomState, syllables: int) -> Array:
    """Returns a phrase of speech with a peak of 0.3."""
    # A factor for the frequencies of the formants, which are higher in a shorter throat.
    size = random.uniform(1.0, 1.2)
    pitch_hz = random.uniform(95, 150) * size**2.5
    pieces = [_syllable(random, pitch_hz, size, 1 - 0.3 * n / syllables) for n in range(syllables)]
    phrase = np.concatenate(pieces)
    scaled: Array = (0.3 * phrase / np.abs(phrase).max()).astype(np.float32)
    return scaled


def other_sound(random: np.random.RandomState, samples: int) -> Array:
    """Returns a sound that is not speech, with a peak of at most 0.3."""
    kinds = (_noise, _tones, _chord, _clicks, _hum)
    sound = kinds[random.randint(len(kinds))](random, samples)
    loudness = random.uniform(0.03, 0.3)
    return (loudness * sound / max(1e-9, float(np.abs(sound).max()))).astype(np.float32)


def background(random: np.random.RandomState, samples: int) -> Array:
    """Returns the quiet noise of a room."""
    noise = _banded(random, samples, 50, 6000) * 10 ** random.uniform(-3.3, -2.5)
    return noise.astype(np.float32)


def _syllable(random: np.random.RandomState, pitch_hz: float, size: float, height: float) -> Array:
    """Returns a consonant and a vowel. height: factor of the pitch."""
    onset, vowel = _onset(random), random.randint(len(_VOWELS_HZ))
    steps = random.randint(24, 50)  # each step takes 5 ms
    target = np.array(_VOWELS_HZ[vowel]) * size
    nasal = random.random_sample() < 0.35
    start = np.array(_NASAL_HZ) * size if nasal else target * random.uniform(0.6, 1.2, 3)
    move = np.clip(np.arange(steps) / random.randint(6, 14), 0, 1)[:, np.newaxis]
    formants = start + (target - start) * move
    accent = 1 + 0.15 * np.sin(np.pi * np.arange(steps) / steps) * random.uniform(-0.3, 1.0)
    pitch = pitch_hz * height * accent * (1 + 0.01 * random.standard_normal(steps))
    rise, fall = np.arange(steps) / 5, (steps - np.arange(steps)) / 8
    loud = np.clip(np.minimum(rise, fall), 0, 1) * random.uniform(0.6, 1.0)
    voiced = _voiced(random, pitch, formants, loud)
    return np.concatenate([onset, voiced])


def _onset(random: np.random.RandomState) -> Array:
    """Returns a hiss, a stop with its burst, or nothing (before a nasal or a vowel)."""
    kind = random.randint(3)
    if kind == 0:
        samples = int(RATE_HZ * random.uniform(0.05, 0.12))
        low, high = _HISSES_HZ[random.randint(len(_HISSES_HZ))]
        shape = np.hanning(samples)
        return 0.25 * shape * _banded(random, samples, low, high)
    if kind == 1:
        gap = np.zeros(int(RATE_HZ * random.uniform(0.03, 0.07)))
        samples = int(RATE_HZ * random.uniform(0.01, 0.03))
        burst = _banded(random, samples, 800, 6000) * np.exp(-np.arange(samples) / (samples / 4))
        return np.concatenate([gap, 0.4 * burst])
    return np.zeros(0)


def _voiced(random: np.random.RandomState, pitch: Array, formants: Array, loud: Array) -> Array:
    """Returns a sum of harmonics. pitch, loud: (steps,). formants: (steps, 3) Hz."""
    steps, each = len(pitch), RATE_HZ // _CONTROL_HZ
    at = np.arange(steps * each) / each
    phase = 2 * np.pi * np.cumsum(np.interp(at, np.arange(steps), pitch)) / RATE_HZ
    four = np.column_stack([formants, np.full(steps, _FOURTH_HZ)])
    sound = np.zeros(len(at))
    # Each harmonic is a power of one rotating complex number, because a product takes less time than a sine.
    pointer = np.exp(1j * phase)
    turning = np.ones(len(at), complex)
    for number in range(1, int(_MOST_HZ / pitch.max()) + 1):
        turning *= pointer
        strength = loud * _throat(number * pitch, four) / number
        sound += np.interp(at, np.arange(steps), strength) * turning.imag
    breath = _banded(random, len(at), 1500, 6000) * np.interp(at, np.arange(steps), loud)
    sound += 0.01 * np.abs(sound).max() * breath
    return sound


def _throat(hz: Array, formants: Array) -> Array:
    """Returns a harmonic's (steps,) strengths after four resonances in series. hz: (steps,) frequencies of the
    harmonic.
    """
    squared = hz[:, np.newaxis] ** 2
    centre = formants**2
    damping = (hz[:, np.newaxis] * _WIDTHS_HZ) ** 2
    each = centre / np.sqrt((centre - squared) ** 2 + damping)
    strength: Array = each.prod(axis=1)
    return strength


def _banded(random: np.random.RandomState, samples: int, low_hz: float, high_hz: float) -> Array:
    """Returns noise of unit strength between two frequencies."""
    spectrum = np.fft.rfft(random.standard_normal(samples))
    hz = np.fft.rfftfreq(samples, 1 / RATE_HZ)
    edge = 0.1 * high_hz
    kept = np.clip((hz - low_hz) / edge + 1, 0, 1) * np.clip((high_hz - hz) / edge + 1, 0, 1)
    noise: Array = np.fft.irfft(spectrum * kept, samples)
    return noise / max(1e-9, float(noise.std()))


def _noise(random: np.random.RandomState, samples: int) -> Array:
    low = random.uniform(20, 1500)
    return _banded(random, samples, low, low * random.uniform(2, 8))


def _tones(random: np.random.RandomState, samples: int) -> Array:
    """Returns beeps."""
    on = np.repeat(random.randint(0, 2, samples // 1600 + 1), 1600)[:samples]
    return on * np.sin(2 * np.pi * random.uniform(300, 3000) * _seconds(samples))


def _chord(random: np.random.RandomState, samples: int) -> Array:
    root = random.uniform(110, 440)
    return _harmonics(samples, [root, root * 1.25, root * 1.5], 6)


def _hum(random: np.random.RandomState, samples: int) -> Array:
    return _harmonics(samples, [random.choice([50.0, 60.0, 100.0])], 12)


def _harmonics(samples: int, roots_hz: Sequence[float], count: int) -> Array:
    seconds, whole = _seconds(samples), np.zeros(samples)
    for root in roots_hz:
        for number in range(1, count + 1):
            whole += np.sin(2 * np.pi * root * number * seconds) / number
    return whole


def _clicks(random: np.random.RandomState, samples: int) -> Array:
    clicks = np.zeros(samples)
    for at in random.randint(0, samples, max(1, samples // 4000)):
        length = min(160, samples - at)
        clicks[at : at + length] += random.standard_normal(length) * np.exp(-np.arange(length) / 30)
    return clicks


def _seconds(samples: int) -> Array:
    return np.arange(samples) / RATE_HZ
