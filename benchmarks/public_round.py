r"""A federated round with a public encoder: its head alone, or all trained.

    python -m benchmarks.public_round --model=whisper_base

Both start from a folder of random weights of a published size of Whisper and
compute features from audio; each has a process of its own, so that its memory
can be told, and they take turns. A round clips by layer and adds noise.
`peak`: the process's largest resident memory, which includes the pages of the
encoder's files that it has read.
"""

from tff_asr import launch  # First: quiets TensorFlow before it is loaded.

launch.install_early_sigint(__name__)

import contextlib
import multiprocessing
from multiprocessing import connection
import os
import tempfile
from typing import NamedTuple

from absl import flags

from benchmarks import memory
from benchmarks import report
from benchmarks import turns
from benchmarks import workload as workload_lib
from tff_asr.data import client_data
from tff_asr.execution import multi_device
from tff_asr.features import front_end as front_end_lib
from tff_asr.models import ctc
from tff_asr.models import layer_mix
from tff_asr.models import weights as weights_lib
from tff_asr.pretrained import adapted
from tff_asr.pretrained import features
from tff_asr.text import tokenizer as tokenizer_lib
from tools.pretrained_parity import random_folders

_MODEL = flags.DEFINE_enum(
    'model',
    'whisper_tiny',
    [name for name in random_folders.PUBLISHED if name.startswith('whisper')]
    + ['toy'],
    'Size of the public encoder.',
)
_CLIENTS = flags.DEFINE_integer(
    'num_clients', 4, 'Clients of a round.', lower_bound=1
)
_STEPS = flags.DEFINE_integer(
    'local_steps', 2, 'Steps of 10 s of audio of each client.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'Rounds that count.', lower_bound=1
)

_TOY = random_folders.TINY['whisper']
_POSITIONS = 1500
_HEAD, _WHOLE = 'head', 'whole'
_WORDS = {_HEAD: 'the head', _WHOLE: 'encoder and head'}


class _Sizes(NamedTuple):
  """Weights of a model."""

  num_trained: int
  num_frozen: int


def main(_) -> None:
  report.check_json_flag()
  with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
    os.environ[features.CACHE_VARIABLE] = os.path.join(root, 'cache')
    config = random_folders.PUBLISHED.get(_MODEL.value, _TOY)
    random_folders.write(
        _public(root), config | dict(max_source_positions=_POSITIONS)
    )
    workload = workload_lib.Workload(
        num_blocks=1,
        dim=4,
        num_clients=_CLIENTS.value,
        num_local_steps=_STEPS.value,
    )
    workload.write_corpus(_corpus(root))
    rounds = {
        kind: stack.enter_context(_Rounds(root, workload, kind))
        for kind in (_HEAD, _WHOLE)
    }
    seconds = turns.measure(
        {kind: each.take for kind, each in rounds.items()},
        repeats=_REPEATS.value,
    )
    peaks = {kind: each.peak_gib() for kind, each in rounds.items()}
    _report(seconds, peaks, {kind: each.sizes for kind, each in rounds.items()})


class _Rounds:
  """Rounds in a process of their own; a context manager.

  Attributes:
    sizes: Weights of the model.
  """

  def __init__(self, root: str, workload: workload_lib.Workload, kind: str):
    # TensorFlow does not survive a fork.
    context = multiprocessing.get_context('spawn')
    self._pipe, remote = context.Pipe()
    self._process = context.Process(
        target=_serve, args=(remote, root, workload, kind), daemon=True
    )
    self._process.start()
    # The child has the other end: if it dies, reading from this one fails.
    remote.close()
    self.sizes = self._pipe.recv()

  def __enter__(self) -> '_Rounds':
    return self

  def __exit__(self, *_) -> None:
    self._pipe.close()
    self._process.join()

  def take(self) -> None:
    """Runs a round to its end."""
    self.peak_gib()

  def peak_gib(self) -> float:
    """Runs a round; the largest memory of the process so far, GiB."""
    self._pipe.send(None)
    return self._pipe.recv()


def _serve(
    pipe: connection.Connection,
    root: str,
    workload: workload_lib.Workload,
    kind: str,
) -> None:
  """Runs a round for each message, and answers with the peak of memory."""
  launch.drop_default_context()  # It would complain at the end.
  model, front_end = _build(_public(root), kind)
  clients = client_data.load(_corpus(root))
  take_round = workload_lib.Round(
      multi_device.build_sync_context(),
      workload.build_process(
          clients,
          cohort_size=workload.num_clients,
          model=model,
          front_end=front_end,
      ),
      clients.locate_clients(clients.client_ids),
  )
  pipe.send(
      _Sizes(
          weights_lib.num_parameters(model.specs),
          weights_lib.num_parameters(
              {**model.encoder.frozen, **front_end.tensors}
          ),
      )
  )
  with contextlib.suppress(EOFError):
    while True:
      pipe.recv()
      take_round()
      pipe.send(memory.peak_gib())


def _build(
    name: str, kind: str
) -> tuple[ctc.CtcModel, front_end_lib.FrontEnd]:
  """A model on the public encoder, and its front end."""
  if kind == _HEAD:
    front_end = features.of_model(name=name)
    encoder = layer_mix.build(front_end=front_end)
  else:
    public_encoder = adapted.load(name=name)
    front_end = adapted.front_end(public_encoder)
    encoder = layer_mix.build_on(encoder=adapted.whole(public_encoder))
  tokenizer = tokenizer_lib.CharTokenizer()
  return ctc.build(encoder=encoder, tokenizer=tokenizer), front_end


def _public(root: str) -> str:
  return os.path.join(root, 'public_model')


def _corpus(root: str) -> str:
  return os.path.join(root, 'shards')


def _report(
    seconds: dict[str, list[float]],
    peaks: dict[str, float],
    sizes: dict[str, _Sizes],
) -> None:
  """Prints the table."""
  ratios = turns.ratios(seconds[_WHOLE], seconds[_HEAD])
  table = [['trained', 'weights', 'frozen', 'seconds a round', 'peak, GiB']]
  for kind, words in _WORDS.items():
    table.append([
        words,
        f'{sizes[kind].num_trained:,}',
        f'{sizes[kind].num_frozen:,}',
        report.spread(seconds[kind]),
        f'{peaks[kind]:.2f}',
    ])
  report.write(
      f'{_MODEL.value}: a round of {_CLIENTS.value} clients, {_STEPS.value} '
      'steps each. Encoder and head take '
      f'{report.spread(ratios)} times as long as the head.',
      table,
      dict(
          seconds=seconds,
          ratios=ratios,
          peak_gib=peaks,
          sizes={kind: each._asdict() for kind, each in sizes.items()},
      ),
  )


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')
