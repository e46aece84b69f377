"""Local web page: transcripts of one recording by the models of several runs.

A server of Python's own library, for the person who started it:

- It listens on the loopback interface only, which other users of this computer
  reach, too. So each request must have the token of the printed address, in its
  query or, as the page sends it, in the header Authorization.
- A request must name that host, so that no other site's name can be pointed
  here (DNS rebinding); a recording must come from the page itself (its Origin).
- A recording is bounded in bytes and seconds before it is decoded. It is kept
  only in memory while it is transcribed, and ffmpeg reads it from there, too.
  Requests are not logged, and no answer names a file.
- Names and transcripts reach the page as JSON, which it shows as text, never as
  markup. The page fetches nothing from elsewhere; its security policy says so.

    GET  /?token=TOKEN   the page
    GET  /runs        {max_bytes, max_sec, runs: [`describe`]}
    POST /transcribe?reference=TEXT, an audio file
                      {seconds, hypotheses: [`Comparison`]} or {error}
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import hmac
import http
import http.server
import json
import os
import secrets
import socketserver
import threading
from typing import TypedDict
import unicodedata
from urllib import parse

from tff_asr import files
from tff_asr.data import audio
from tff_asr.metrics import word_errors
from tff_asr.recognition import recognizer as recognizer_lib
from tff_asr.reports import runs as runs_lib
from tff_asr.reports import tables

# Never all interfaces: the page is for the person at this computer.
HOST = '127.0.0.1'
MAX_BYTES = 64 * 2**20
# Each model transcribes while the page waits.
MAX_SEC = 120.0


class Comparison(TypedDict, total=False):
  """A hypothesis aligned with a reference (`compare`).

  It also has the hypothesis' words with their confidences.
  """
  text: str
  pairs: list[word_errors.Pair] | None
  errors: int
  words: int
  confidences: list[tuple[str, float]]


class Transcripts(TypedDict):
  """Answer to a recording; one hypothesis per run."""
  seconds: float
  hypotheses: list[Comparison]


_PAGE = os.path.join(os.path.dirname(__file__), 'demo.html')
_STYLE = os.path.join(os.path.dirname(__file__), 'page.css')
# Scripts and styles are those of the page; a recording is played from memory,
# and its worklet is a part of the script.
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}' blob:; "
    "style-src 'nonce-{nonce}'; connect-src 'self'; media-src blob:; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A page that sends nothing for longer was closed.
_TIMEOUT_SEC = 30


class Server(socketserver.ThreadingTCPServer):
  """Serves the page until `shutdown`; `server_address` has the port.

  Attributes:
    token: What each request must have.
    runs: What the page shows of the runs.
  """

  # A demo that is started again can use the same port at once.
  allow_reuse_address = True
  # A page that is open does not keep the program from ending.
  daemon_threads = True

  def __init__(
      self,
      rows: Sequence[tables.Row],
      recognizers: Sequence[recognizer_lib.Recognize],
      *,
      port: int = 0,
  ):
    """Listens; `serve_forever` answers.

    Args:
      rows: The runs, one run a row.
      recognizers: Their models, in the same order.
      port: Port of the loopback interface; 0: any that is free.

    Raises:
      ValueError: The port is taken.
    """
    self.token = secrets.token_urlsafe()
    self.runs = [describe(row) for row in rows]
    self._recognizers = recognizers
    # One model at a time: each uses all cores.
    self._lock = threading.Lock()
    try:
      super().__init__((HOST, port), _Handler)
    except OSError as e:
      raise ValueError(
          f'port {port} cannot be used ({e.strerror}): use another --port.'
      ) from e

  @property
  def url(self) -> str:
    """The address with its token: whoever has it can use the page."""
    return f'http://{HOST}:{self.server_address[1]}/?token={self.token}'

  def transcribe(self, recording: bytes, *, reference: str) -> Transcripts:
    """Transcribes an audio file with the model of each run.

    Raises:
      AudioError: The file is not audio, or is too long.
    """
    with self._lock:
      # The path is not known: the browser sends content only.
      waveform = audio.read(recording, name='this file', max_sec=MAX_SEC)
      hypotheses = []
      for recognize in self._recognizers:
        (found,) = recognize([('recording', waveform)])
        confidences = [(word.text, word.confidence) for word in found.words]
        hypotheses.append(
            compare(reference, found.text) | {'confidences': confidences}
        )
    return {
        'seconds': len(waveform) / audio.SAMPLE_RATE_HZ,
        'hypotheses': hypotheses,
    }


def describe(row: tables.Row) -> dict[str, str | bool]:
  """Returns the page's description of a run; texts are empty if unknown."""
  run = row.first
  return {
      'name': row.label,
      'kind': tables.COLUMNS['kind'](row),
      'test_wer': tables.rate(row),
      'test_wer_with_lm': tables.rate(row, runs_lib.WER_WITH_LM),
      'test_speakers': f'{len(run.speakers):,}',
      'normalization': run.normalization,
      'dev_wer': tables.COLUMNS['dev WER %'](row),
      'epsilon': tables.epsilon_by(row),
      'delta': '' if run.privacy is None else f'{run.privacy["delta"]:g}',
      'is_private': run.privacy is not None and run.privacy['private'],
      'is_public': run.is_public,
  }


def compare(reference: str, hypothesis: str) -> Comparison:
  """Aligns a hypothesis with the reference, if there is one.

  Case and punctuation do not count, because models differ in them.

  Returns:
    text: The hypothesis.
    pairs: `word_errors.Pair`s; None without a reference.
    errors, words: Their counts.
  """
  words = _words(reference)
  if not words:
    return {'text': hypothesis, 'pairs': None}
  errors = word_errors.count(words, _words(hypothesis))
  return {
      'text': hypothesis,
      'pairs': word_errors.align(words, _words(hypothesis)),
      'errors': errors.errors,
      'words': errors.words,
  }


def _words(text: str) -> str:
  """Lower case; letters, digits, and apostrophes and hyphens inside words."""
  # Composed: an accent as a letter of its own would split the word.
  text = unicodedata.normalize('NFC', text).lower().replace('\u2019', "'")
  kept = ''.join(
      c if unicodedata.category(c)[0] in 'LMN' or c in "'-" else ' '
      for c in text
  )
  return ' '.join(filter(None, (word.strip("'-") for word in kept.split())))


class _Refused(Exception):
  """A request that is refused."""

  def __init__(self, status: http.HTTPStatus, why: str):
    super().__init__(why)
    self.status = status


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers one request of the page."""

  server: Server
  # Responses do not reveal the version of Python.
  server_version, sys_version = 'tff_asr', ''
  timeout = _TIMEOUT_SEC

  def do_GET(self) -> None:  # pylint: disable=invalid-name
    self._answer({'/': self._page, '/runs': self._runs})

  def do_POST(self) -> None:  # pylint: disable=invalid-name
    self._answer({'/transcribe': self._transcribe})

  def log_message(self, *unused_arguments) -> None:
    """Logs nothing: a request's line has the reference."""

  def _answer(
      self, answers: Mapping[str, Callable[[Mapping[str, str]], None]]
  ) -> None:
    """Checks where a request comes from, and answers its query."""
    try:
      host = self.headers.get('Host', '')
      try:
        # With any port: it may be forwarded from another computer.
        name = parse.urlsplit(f'//{host}').hostname
        url = parse.urlsplit(self.path)
      except ValueError:
        raise _Refused(
            http.HTTPStatus.BAD_REQUEST, 'Malformed address.'
        ) from None
      if name not in (HOST, 'localhost'):
        raise _Refused(http.HTTPStatus.FORBIDDEN, 'Unknown host.')
      query = dict(parse.parse_qsl(url.query))
      given = self.headers.get('Authorization') or query.get('token', '')
      # In constant time, so that it cannot be guessed letter by letter.
      if not hmac.compare_digest(given.encode(), self.server.token.encode()):
        raise _Refused(
            http.HTTPStatus.FORBIDDEN,
            'Open the address that bin/demo.py has printed: it has a token.',
        )
      if self.command == 'POST' and (
          self.headers.get('Origin') != f'http://{host}'
      ):
        raise _Refused(
            http.HTTPStatus.FORBIDDEN,
            'Requests must come from the page itself.',
        )
      if url.path not in answers:
        raise _Refused(http.HTTPStatus.NOT_FOUND, 'Not found.')
      answers[url.path](query)
    except _Refused as e:
      self._send_json({'error': str(e)}, status=e.status)
    except audio.AudioError as e:
      self._send_json({'error': str(e)}, status=http.HTTPStatus.BAD_REQUEST)
    except (ConnectionError, TimeoutError):
      pass  # The page was closed.

  def _page(self, unused_query: Mapping[str, str]) -> None:
    # A new nonce for each response, so that no script can guess it.
    nonce = secrets.token_urlsafe(16)
    # Read at each request, which is rare.
    style, page = (files.read(path).decode() for path in (_STYLE, _PAGE))
    page = page.replace('/* page.css */', style).replace('NONCE', nonce)
    self._send(page, kind='text/html', policy=_POLICY.format(nonce=nonce))

  def _runs(self, unused_query: Mapping[str, str]) -> None:
    self._send_json({
        'max_bytes': MAX_BYTES, 'max_sec': MAX_SEC, 'runs': self.server.runs,
    })

  def _transcribe(self, query: Mapping[str, str]) -> None:
    size = self.headers.get('Content-Length', '')
    # Without a length, the body has no bound before it is read.
    if not size.isdecimal() or 'Transfer-Encoding' in self.headers:
      raise _Refused(
          http.HTTPStatus.LENGTH_REQUIRED, 'The Content-Length is missing.'
      )
    # Counted first: int() refuses numbers of thousands of digits.
    if len(size) > len(str(MAX_BYTES)) or int(size) > MAX_BYTES:
      raise _Refused(
          http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
          f'The file is larger than {MAX_BYTES // 2**20} MiB.',
      )
    recording = self.rfile.read(int(size))
    # The connection ended early.
    if len(recording) < int(size):
      raise _Refused(http.HTTPStatus.BAD_REQUEST, 'The file was cut off.')
    self._send_json(
        self.server.transcribe(
            recording, reference=query.get('reference', '')
        )
    )

  def _send_json(
      self, value: Mapping[str, object], *, status: int = http.HTTPStatus.OK
  ) -> None:
    self._send(json.dumps(value), kind='application/json', status=status)

  def _send(
      self,
      text: str,
      *,
      kind: str,
      status: http.HTTPStatus = http.HTTPStatus.OK,
      policy: str = "default-src 'none'; frame-ancestors 'none'",
  ) -> None:
    data = text.encode()
    self.send_response(status)
    for name, value in {
        'Content-Type': f'{kind}; charset=utf-8',
        # In bytes, not in characters.
        'Content-Length': str(len(data)),
        'Content-Security-Policy': policy,
        # Transcripts must not stay in the browser's cache.
        'Cache-Control': 'no-store',
        'Referrer-Policy': 'no-referrer',
        'X-Content-Type-Options': 'nosniff',
        'Cross-Origin-Resource-Policy': 'same-origin',
    }.items():
      self.send_header(name, value)
    self.end_headers()
    self.wfile.write(data)
