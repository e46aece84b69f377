"""Tests of tff_asr.reports.demo: answers, refusals, and the page."""

from collections.abc import Iterator
import contextlib
import hmac
import http.client
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
from typing import Any
from unittest import mock
from urllib import parse
from urllib import request

from absl.testing import parameterized
import numpy as np
import pytest
import soundfile

from tests import cases
from tests.reports import run_folders
from tff_asr.recognition import recognizer
from tff_asr.reports import demo
from tff_asr.reports import tables

_MARKUP = '<img src=x onerror="document.title=1">'
_CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
_DRIVER = shutil.which('chromedriver')


def _tone(seconds: float, *, rate_hz: int = 16000, **options) -> bytes:
  """An audio file of 440 Hz."""
  file = io.BytesIO()
  phase = 2 * np.pi * 440 * np.arange(int(seconds * rate_hz)) / rate_hz
  options = {'format': 'WAV'} | options
  soundfile.write(file, 0.5 * np.sin(phase), rate_hz, **options)
  return file.getvalue()


class _Model:
  """Gives one transcript for all audio, and keeps its inputs."""

  def __init__(self, text: str):
    self.text = text
    self.waveforms = []

  def __call__(self, waveforms) -> Iterator[recognizer.Recognition]:
    for name, waveform in waveforms:
      self.waveforms.append(waveform)
      yield recognizer.Recognition(
          name,
          len(waveform) / 16000,
          self.text,
          [recognizer.Word(each, 0.0, 1.0, 0.25) for each in self.text.split()],
          [],
      )


class DemoTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    seed = run_folders.read(self.path('seed'), **run_folders.SEED)
    private = run_folders.read(
        self.path('private'),
        settings={'NUM_ROUNDS': '3'},
        metrics=run_folders.PRIVATE_METRICS,
        privacy=run_folders.privacy(epsilon=2.5) | {'private': True},
        results={'seconds': 10.0},
    )
    self.models = [_Model('one too'), _Model(_MARKUP)]
    self.server = self.enterContext(demo.Server(
        [tables.Row(_MARKUP, [seed]), tables.Row('DP', [private])],
        self.models,
    ))
    thread = threading.Thread(target=self.server.serve_forever)
    thread.start()
    self.addCleanup(thread.join)
    self.addCleanup(self.server.shutdown)

  def ask(
      self,
      method: str,
      path: str,
      body: bytes | None = None,
      **headers: str,
  ) -> tuple[int, str, http.client.HTTPMessage]:
    """Status, content and headers of an answer."""
    host = parse.urlsplit(self.server.url).netloc
    connection = http.client.HTTPConnection(host, timeout=10)
    self.addCleanup(connection.close)
    headers = {
        'Origin': f'http://{host}',
        'Authorization': self.server.token,
    } | {name.replace('_', '-'): value for name, value in headers.items()}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers

  def transcribe(self, body: bytes, reference: str = '', **headers) -> Any:
    query = parse.urlencode({'reference': reference})
    status, text, _ = self.ask(
        'POST', f'/transcribe?{query}', body, **headers
    )
    return status, json.loads(text)

  def test_shows_runs_with_errors_and_privacy(self):
    status, text, headers = self.ask('GET', '/runs')
    self.assertEqual(
        (status, headers.get_content_type()), (200, 'application/json')
    )
    seed, private = json.loads(text)['runs']
    self.assertEqual(seed['name'], _MARKUP)
    # (3 + 5) / (4 + 8) words.
    self.assertEqual((seed['test_wer'], seed['test_speakers']), ('66.7', '2'))
    self.assertEqual(seed['test_wer_with_lm'], '')
    self.assertEqual((seed['epsilon'], seed['is_private']), ('', False))
    self.assertEqual((seed['is_public'], private['is_public']), (True, False))
    self.assertEqual((private['test_wer'], private['dev_wer']), ('', '40.0'))
    self.assertEqual(
        (private['epsilon'], private['delta'], private['is_private']),
        ('2.5', '0.001', True),
    )

  def test_each_model_transcribes_the_recording(self):
    status, answer = self.transcribe(
        _tone(0.5, rate_hz=44100, format='FLAC'), 'One, TWO'
    )
    self.assertEqual((status, answer['seconds']), (200, 0.5))
    one, two = answer['hypotheses']
    self.assertEqual((one['text'], one['errors'], one['words']),
                     ('one too', 1, 2))
    self.assertEqual(
        one['pairs'], [['equal', 'one', 'one'], ['substitute', 'two', 'too']]
    )
    self.assertEqual(two['text'], _MARKUP)
    for model in self.models:
      (waveform,) = model.waveforms
      self.assertEqual((waveform.dtype, len(waveform)), (np.int16, 8000))

  def test_counts_no_errors_without_a_reference(self):
    _, answer = self.transcribe(_tone(0.1), ' ?!')
    self.assertEqual(answer['hypotheses'][0], {
        'text': 'one too', 'pairs': None,
        'confidences': [['one', 0.25], ['too', 0.25]],
    })

  def test_case_and_punctuation_do_not_count(self):
    found = demo.compare('«Ça va», dit-il: l’été!', "ça va dit-il l'été")
    self.assertEqual((found['errors'], found['words']), (0, 4))
    self.assertEqual(demo.compare('room 4', 'room')['errors'], 1)

  def test_listens_on_the_loopback_interface_only(self):
    self.assertEqual(self.server.server_address[0], '127.0.0.1')

  def test_takes_another_port_of_the_same_host_only(self):
    # Forwarded from another computer.
    for host in ('localhost:9', '127.0.0.1'):
      status, _, _ = self.ask('GET', '/', Host=host)
      self.assertEqual(status, 200, host)
    for host in ('evil.example', 'localhost.evil.example', '', '[', '[::1]'):
      status, text, _ = self.ask('GET', '/runs', Host=host)
      self.assertIn(status, (400, 403), host)
      self.assertNotIn('test_wer', text)

  @parameterized.parameters(
      ('GET', '/'), ('GET', '/runs'), ('POST', '/transcribe'), ('GET', '/no'),
      ('POST', '/'), ('GET', '/%2e%2e/runs'),
  )
  def test_nothing_is_answered_without_the_token(self, method, path):
    token = self.server.token
    self.assertGreaterEqual(len(token), 32)
    for given in (
        '', 'x', token[:-1], f'{token}x', f'token {token}', token.swapcase(),
        '\xe9',
    ):
      status, text, _ = self.ask(
          method, path, _tone(0.1), Authorization=given
      )
      self.assertEqual(status, 403, given)
      self.assertIn('has a token', text)
      self.assertNotIn(token, text)
    for query in ('', '?token=', f'?token={token[1:]}', f'?Token={token}'):
      status, _, _ = self.ask(
          method, f'{path}{query}', _tone(0.1), Authorization=''
      )
      self.assertEqual(status, 403, query)
    self.assertEmpty(self.models[0].waveforms)
    # As it is refused with the token.
    status, _, _ = self.ask(method, path, b'')
    self.assertNotEqual(status, 403)

  def test_the_printed_address_opens_the_page_which_sends_the_token(self):
    url = parse.urlsplit(self.server.url)
    status, text, _ = self.ask(
        'GET', f'{url.path}?{url.query}', Authorization=''
    )
    self.assertEqual(status, 200)
    self.assertNotIn(self.server.token, text)
    self.assertIn("new URLSearchParams(location.search).get('token')", text)
    sending = re.findall(r'fetch\([^;]*?\bheaders\b', text)
    self.assertLen(sending, text.count('fetch('))
    with demo.Server([], []) as other:
      self.assertNotEqual(other.token, self.server.token)

  def test_tokens_are_compared_in_constant_time(self):
    compared = []
    real = hmac.compare_digest

    def compare(*both):
      compared.append(both)
      return real(*both)

    with mock.patch.object(hmac, 'compare_digest', compare):
      self.ask('GET', '/', Authorization='x')
    self.assertEqual(compared, [(b'x', self.server.token.encode())])

  def test_what_only_ffmpeg_reads_is_on_no_disk_and_named_in_no_answer(self):
    # A program in its place says what it was given, and where.
    program = pathlib.Path(self.path('ffmpeg'))
    program.write_text(
        '#!/bin/sh\n'
        'for each; do case $each in file:*) file=${each#file:};; esac; done\n'
        f'readlink $file > {self.path("where")}\n'
        f'cat $file > {self.path("what")}\n'
        'echo "file:$file: Invalid data found" >&2\n'
        'echo "$file: Nothing was decoded" >&2\n'
        'exit 1\n'
    )
    program.chmod(0o755)
    # Nowhere to put a temporary file.
    with mock.patch.dict(
        os.environ, {'PATH': f'{self.root}:{os.environ["PATH"]}'}
    ), mock.patch.object(tempfile, 'tempdir', self.path('nowhere')):
      status, answer = self.transcribe(b'\x1aE\xdf\xa3 webm')
    self.assertEqual(status, 400)
    self.assertIn('ffmpeg: Nothing was decoded', answer['error'])
    self.assertNotIn('/', answer['error'])
    self.assertEqual(
        pathlib.Path(self.path('what')).read_bytes(), b'\x1aE\xdf\xa3 webm'
    )
    where = pathlib.Path(self.path('where')).read_text()
    self.assertStartsWith(where, '/memfd:')

  def test_answers_name_no_path_of_this_computer(self):
    for body in (b'', b'x', _tone(0.5)[:-100], b'ID3' + bytes(3000), b'RIFF'):
      _, answer = self.transcribe(body)
      self.assertNotIn('/', answer['error'].replace('`ffmpeg -i', ''))
    # A defect of the program is told in its terminal only.
    self.server.transcribe = mock.Mock(
        side_effect=ValueError(f'{self.root} is no model.')
    )
    with contextlib.redirect_stderr(io.StringIO()) as told:
      with self.assertRaises(http.client.RemoteDisconnected):
        self.transcribe(_tone(0.1))
      while 'is no model' not in told.getvalue():
        time.sleep(0.01)

  def test_only_the_page_itself_may_ask(self):
    for origin in ('http://evil.example', 'null', 'http://localhost:1', ''):
      status, _ = self.transcribe(_tone(0.1), Origin=origin)
      self.assertEqual(status, 403, origin)
    self.assertEmpty(self.models[0].waveforms)

  def test_refuses_large_bodies_before_they_are_sent(self):
    for size, status in (
        (str(demo.MAX_BYTES + 1), 413), ('9' * 5000, 413), ('-1', 411),
        ('x', 411), ('', 411),
    ):
      answer = self.ask('POST', '/transcribe', Content_Length=size)
      self.assertEqual(answer[0], status, size)
    status, _ = self.transcribe(_tone(0.1), Transfer_Encoding='chunked')
    self.assertEqual(status, 411)

  def test_refuses_other_files_and_long_audio(self):
    for data, error in (
        (b'', 'is empty'),
        (b'<script>', 'is not readable audio'),
        (_tone(0.5)[:-100], 'is truncated'),
        (_tone(demo.MAX_SEC + 1, rate_hz=8000, format='FLAC'), 'is too long'),
        # A second at 16 kHz, but 60 million samples.
        (_tone(1, rate_hz=60_000_000, subtype='PCM_U8'), 'is too long'),
    ):
      status, answer = self.transcribe(data)
      self.assertEqual(status, 400)
      self.assertIn(error, answer['error'])
    self.assertEmpty(self.models[0].waveforms)

  def test_other_addresses_and_methods_are_refused(self):
    for method, path, status in (
        ('GET', '/../demo.py', 404), ('GET', '/transcribe', 404),
        ('POST', '/', 404), ('GET', 'x://[', 400), ('PUT', '/', 501),
    ):
      self.assertEqual(self.ask(method, path)[0], status, path)

  def test_the_page_fetches_nothing_and_runs_its_own_script_only(self):
    _, text, headers = self.ask('GET', '/')
    _, _, others = self.ask('GET', '/')
    name = 'Content-Security-Policy'
    self.assertNotEqual(headers[name], others[name])
    self.assertIn("default-src 'none'", headers[name])
    nonce = parse.quote(headers[name].partition('nonce-')[2].partition("'")[0])
    self.assertIn(f'<script nonce="{nonce}">', text)
    self.assertNotIn('://', text)
    self.assertNotIn('innerHTML', text)

  def test_a_taken_port_is_named(self):
    port = self.server.server_address[1]
    with self.assertRaisesRegex(ValueError, f'port {port} cannot be used'):
      demo.Server([], [], port=port)

  @pytest.mark.slow
  @pytest.mark.skipif(
      not (_CHROMIUM and _DRIVER), reason='no chromium and chromedriver'
  )
  def test_a_file_and_a_recording_in_chromium(self):
    file = pathlib.Path(self.path('tone.wav'))
    file.write_bytes(_tone(2, rate_hz=48000))
    with _browser(self.path('profile'), microphone=str(file)) as browser:
      browser.open(self.server.url)
      browser.wait('return document.querySelectorAll("#runs li").length', 2)
      names = browser.run(
          'return [...document.querySelectorAll("h3")].map(e => e.innerText)'
      )
      self.assertEqual(names, [_MARKUP, 'DP'])
      self.assertEqual(browser.run('return document.images.length'), 0)
      browser.type('#reference', 'one two')
      browser.type('#file', str(file))
      status = 'return document.querySelector("#status").innerText'
      browser.wait(status, 'Transcribed 2.0 seconds.')
      lines = (
          'return [...document.querySelectorAll("#runs li")].map('
          'e => e.innerText.split("\\n"))'
      )
      (_, *first), (_, *second) = browser.run(lines)
      self.assertIn('one two too', ' '.join(first))
      self.assertIn('1 of 2 words (50 %)', first)
      self.assertIn('public data', first)
      self.assertIn('epsilon 2.5 (delta 0.001)', second)
      # The note that belongs to a transcript with a reference, and no other.
      notes = (
          'return ["legend", "pale"].map(e => document.getElementById(e).hidden)'
      )
      self.assertEqual(browser.run(notes), [False, True])
      browser.click('#record')
      recording = 'return document.querySelector("#record").innerText'
      browser.wait(recording, 'Stop')
      time.sleep(1)
      browser.click('#record')
      browser.wait(recording, 'Record')
      browser.wait(f'{status}.startsWith("Transcribed ")', True)
      self.assertEqual(browser.run('return document.title'),
                       'Transcripts of several models')
    of_file, *_, recorded = self.models[0].waveforms
    self.assertLen(of_file, 32000)
    self.assertBetween(len(recorded), 8000, 80000)
    # The microphone's 440 Hz came through.
    spectrum = np.abs(np.fft.rfft(recorded))
    peak_hz = spectrum.argmax() * 16000 / len(recorded)
    self.assertAlmostEqual(peak_hz, 440, delta=5)


class _Browser:
  """A page in Chromium, by the WebDriver protocol."""

  def __init__(self, url: str):
    self._url = url

  def call(self, path: str, **value: Any) -> Any:
    asked = request.Request(
        self._url + path,
        json.dumps(value).encode(),
        {'Content-Type': 'application/json'},
    )
    with request.urlopen(asked, timeout=60) as answer:
      return json.load(answer)['value']

  def open(self, url: str) -> None:
    self.call('/url', url=url)

  def run(self, script: str) -> Any:
    return self.call('/execute/sync', script=script, args=[])

  def wait(self, script: str, value: Any) -> None:
    """Waits until a script returns a value."""
    end = time.monotonic() + 30
    while (found := self.run(script)) != value:
      if time.monotonic() > end:
        raise AssertionError(f'{script}: {found!r}, not {value!r}')
      time.sleep(0.1)

  def type(self, selector: str, text: str) -> None:
    self.call(f'/element/{self._find(selector)}/value', text=text)

  def click(self, selector: str) -> None:
    self.call(f'/element/{self._find(selector)}/click')

  def _find(self, selector: str) -> str:
    (element,) = self.call(
        '/element', using='css selector', value=selector
    ).values()
    return element


@contextlib.contextmanager
def _browser(profile: str, *, microphone: str) -> Iterator[_Browser]:
  """Headless Chromium with a file as its microphone."""
  flags = (
      '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic',
      '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync',
      f'--user-data-dir={profile}',
      '--use-fake-ui-for-media-stream',
      '--use-fake-device-for-media-stream',
      f'--use-file-for-fake-audio-capture={microphone}',
  )
  environment = {
      name: value
      for name, value in os.environ.items()
      if 'proxy' not in name.lower()
  }
  driver = subprocess.Popen(
      [_DRIVER, '--port=0'], stdout=subprocess.PIPE, text=True, env=environment
  )
  no_proxy = mock.patch.dict(os.environ, {'no_proxy': '127.0.0.1'})
  with driver, no_proxy:
    try:
      line = next(line for line in driver.stdout if 'successfully' in line)
      port = line.rpartition('on port ')[2].strip('. \n')
      url = f'http://127.0.0.1:{port}/session'
      session = _Browser(url).call('', capabilities={'alwaysMatch': {
          'goog:chromeOptions': {'binary': _CHROMIUM, 'args': flags},
      }})['sessionId']
      try:
        yield _Browser(f'{url}/{session}')
      finally:
        with request.urlopen(
            request.Request(f'{url}/{session}', method='DELETE'), timeout=60
        ):
          pass
    finally:
      driver.terminate()
