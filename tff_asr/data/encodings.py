"""What a record's audio is stored as; NumPy only, so that writers start fast.

| encoding  | content                                     | bytes a second  |
|-----------|---------------------------------------------|-----------------|
| `pcm`     | little-endian int16                         | 32,000          |
| `flac`    | a FLAC file                                 | 13,000 to 20,000|
| `log_mel` | little-endian float32 [T, F] of `mel`       | 32,000          |

All are of 16 kHz mono audio. `pcm` and `flac` give it back bit for bit;
`log_mel` gives what the model reads, computed once.

  N: samples. T: feature frames. F: mel bins.
"""

import io

import numpy as np
import soundfile

from tff_asr import checks
from tff_asr.features import mel

SAMPLE_RATE_HZ = mel.SAMPLE_RATE_HZ
WAVEFORM_ENCODINGS = ('pcm', 'flac')
ENCODINGS = (*WAVEFORM_ENCODINGS, 'log_mel')


def encode(waveform: np.ndarray, *, encoding: str) -> bytes:
  """Returns the bytes that a record stores of a waveform.

  Args:
    waveform: int16 [N], 16 kHz mono, N at least 1.
    encoding: One of `ENCODINGS`.

  Raises:
    ValueError: If `waveform` is not int16 [N] with N at least 1, or `encoding`
      is unknown.
  """
  checks.one_of(ENCODINGS, encoding=encoding)
  if waveform.dtype != np.int16 or waveform.ndim != 1 or not waveform.size:
    raise ValueError(
        'waveform must be int16 [N] with N at least 1, found'
        f' {waveform.dtype} {list(waveform.shape)}.'
    )
  if encoding == 'pcm':
    return waveform.astype('<i2', copy=False).tobytes()
  if encoding == 'log_mel':
    return mel.compute(waveform).astype('<f4', copy=False).tobytes()
  buffer = io.BytesIO()
  soundfile.write(
      buffer, waveform, SAMPLE_RATE_HZ, format='FLAC', subtype='PCM_16'
  )
  return buffer.getvalue()
