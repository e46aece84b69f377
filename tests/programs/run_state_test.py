"""Tests of tff_asr.programs.run_state: secrets, and where a run resumes.

The runs have a ledger, saved states and secrets like any run, but a round is a
few sums in NumPy (`_Process`), so that a run can be killed at each change of
its files.
"""

import asyncio
import collections
from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import shutil
from typing import Any
from unittest import mock

from absl.testing import parameterized
import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests import seen
from tests.programs import runs
from tff_asr.data import cohorts
from tff_asr.learning import fed_avg
from tff_asr.privacy import correlated_noise
from tff_asr.privacy import distributed
from tff_asr.privacy import keys
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.privacy import strategies
from tff_asr.programs import private_rounds
from tff_asr.programs import run_state
from tff_asr.programs import training_loop
from tff_asr.storage import checkpoints
from tff_asr.storage import model_file
from tff_asr.storage import run_dir
from tff_asr.storage import state_file

_IDS = tuple('abcdef')
_COHORT_SIZE = 2
# Three rounds a pass.
_SEPARATION = len(_IDS) // _COHORT_SIZE
_NUM_ROUNDS = 5
_FIXED = private_rounds.PrivacySettings(noise_seed=1, sampler_seed=2)
# Keys from the operating system.
_DRAWN = private_rounds.PrivacySettings()
# Many tests have the same privacy loss: PLD accounting computes it once.
_PLD_ONCE = fakes.pld_once()
_CHANGES = ('write', 'ftruncate', 'fsync', 'replace', 'remove')


def _correlated(strategy: strategies.Toeplitz) -> Callable[..., Any]:
  """Builds queries with noise correlated by a strategy."""
  return functools.partial(
      queries.PerLayerClipSumQuery,
      noise=correlated_noise.CorrelatedNoise(
          strategy=strategy, min_sep=3
      ),
  )


class _Process:
  """Adds 1 and noise to the weight of each client in the cohort."""

  def __init__(self, kind: str, *, min_clients: int):
    self._kind = kind
    self._min_clients = min_clients

  def initialize(self):
    key = np.zeros([keys.NUM_WORDS], np.int32)
    query_state = queries.QueryState(
        l2_norm_clip=np.float32(1),
        noise_multiplier=np.float32(4),
        noise_key=key,
        counter=np.int64(0),
    )
    if self._kind == 'min_sep':
      query_state = query_state._replace(
          output_scale=np.array([2**29]),
          buf_decay=np.array([2**29]),
          buffers={'w': np.zeros([1, 6], np.float32)},
      )
      event = strategies.CorrelatedGaussianDpEvent(
          4.0, _SEPARATION, np.array([2**29]), np.array([2**29])
      )
    else:
      event = dp_accounting.GaussianDpEvent(4.0)
    if self._kind == 'fixed_size':
      event = distributed.DistributedGaussianDpEvent(
          noise_multiplier=4.0,
          num_clients=_COHORT_SIZE,
          min_clients=self._min_clients,
          bits=16,
          local_stddev=20.0,
          num_elements=6,
      )
    return runs.process_state(
        collections.OrderedDict(w=np.zeros([6], np.float32)),
        query_state=query_state,
        event=event,
    )

  def next(self, state, cohort):
    query_state = private_rounds.query_state(state)
    counter = int(query_state.counter)
    words = np.asarray(query_state.noise_key).view(np.uint32)
    noise = np.random.default_rng([*words, counter]).normal(size=6)
    change = noise = noise.astype(np.float32)
    changes = dict(counter=np.int64(counter + 1))
    if self._kind == 'min_sep':
      before = query_state.buffers['w'][0]
      changes['buffers'] = {'w': (before / 2 + noise)[np.newaxis]}
      change = noise - before / 2
    change = change + np.isin(_IDS, cohort)
    state = private_rounds.with_query_state(state, **changes)
    weights = collections.OrderedDict(
        w=np.float32(state.global_model_weights['w'] + change)
    )
    return tff.learning.templates.LearningProcessOutput(
        state._replace(global_model_weights=weights), {}
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Run(
    training_loop.TrainingRun[list[str], cohorts.CohortState, tuple[()]]
):
  """A run of `_Process`.

  Attributes:
    kind: How cohorts are drawn; 'public' charges nothing.
    num_rounds: Rounds of the whole run.
    after_round: Called with the number of each round, once it is charged.
    ids: The clients.
    min_clients: Clients that draw enough noise, if clients draw it.
    privacy: Its keys.
  """

  kind: str
  num_rounds: int
  after_round: Callable[[int], None]
  ids: tuple[str, ...] = _IDS
  privacy: private_rounds.PrivacySettings = private_rounds.PrivacySettings()
  min_clients: int = _COHORT_SIZE

  name = step_name = 'round'
  privacy_unit = 'speaker'

  def validate(self):
    pass

  @functools.cached_property
  def process(self):
    return _Process(self.kind, min_clients=self.min_clients)

  async def init_process_state(self):
    return self.process.initialize()

  async def step(self, state, batch):
    return self.process.next(state, batch)

  @functools.cached_property
  def _cohorts(self):
    build = {
        'min_sep': functools.partial(cohorts.min_sep, min_sep=_SEPARATION),
        'fixed_size': cohorts.fixed_size,
    }.get(self.kind, cohorts.poisson)
    return build(
        self.ids,
        cohort_size=_COHORT_SIZE,
        key=keys.draw_or_fix(self.privacy.sampler_seed),
    )

  @property
  def sampling(self):
    return None if self.kind == 'public' else self._cohorts.sampling

  @property
  def total_rounds(self):
    return self.num_rounds

  @property
  def tokens(self):
    return 'a'

  def init_data_position(self):
    return self._cohorts.initial_state()

  def init_loop_state(self, weights):
    del weights
    return ()

  def sample(self, data_position):
    return self._cohorts.draw(data_position)

  def process_round(self, loop_state, result, *, round_num, shows_exact):
    del shows_exact
    self.after_round(round_num)
    weight = result.output.state.global_model_weights['w'][0]
    return loop_state, {'w': float(weight)}


class _Killed(BaseException):
  """Not an `Exception`: nothing is saved after it."""


@contextlib.contextmanager
def _disk_changes(root: str, *, kill_at: int = -1) -> Iterator[list[str]]:
  """Lists changes of the files in a folder, as `write ledger.jsonl`.

  Args:
    root: The folder.
    kill_at: Number of the change at which the process is killed: it and all
      later ones raise `_Killed`.
  """
  found = []
  is_killed = False

  def change(name, function, *arguments):
    nonlocal is_killed
    path = arguments[1 if name == 'replace' else 0]
    if isinstance(path, int):
      path = os.readlink(f'/proc/self/fd/{path}')
    if path.startswith(root):
      is_killed = is_killed or len(found) == kill_at
      found.append(f'{name} {os.path.basename(path)}')
    if is_killed:
      raise _Killed()
    return function(*arguments)

  with contextlib.ExitStack() as stack:
    for name in _CHANGES:
      function = getattr(os, name)
      stack.enter_context(mock.patch.object(
          os, name, lambda *a, n=name, f=function: change(n, f, *a)
      ))
    yield found


class _TestCase(cases.TestCase):

  def setUp(self):
    super().setUp()
    # Killing a process loses nothing that it wrote, and fsync takes time.
    self.enterContext(mock.patch.object(os, 'fsync'))
    self.enterContext(_PLD_ONCE)

  def train(
      self,
      run: str,
      kind: str = 'poisson',
      *,
      num_rounds: int = _NUM_ROUNDS,
      kill_in: int = 0,
      privacy=_FIXED,
      ids: tuple[str, ...] = _IDS,
      min_clients: int = _COHORT_SIZE,
      **settings,
  ) -> None:
    """Starts or resumes a run.

    Args:
      run: Name of its folder.
      kind: How cohorts are drawn; see `_Run`.
      num_rounds: Rounds of the whole run.
      kill_in: The run is killed when this round is charged; 0: never.
      privacy: Its keys.
      ids: The clients.
      min_clients: See `_Run`.
      **settings: Of `RunSettings`; by default every second state is saved.
    """

    def after_round(round_num):
      if round_num == kill_in:
        raise _Killed()

    built = _Run(
        kind=kind,
        num_rounds=num_rounds,
        after_round=after_round,
        ids=ids,
        min_clients=min_clients,
        output_dir=self.path(run),
        configuration='',
        model=None,
        pipeline=mock.Mock(
            buckets=None,
            **{
                'tokenizer.source': 'letters',
                'front_end.public_model': None,
                'front_end.public_sha256': '',
            },
        ),
        client_data=None,
        settings=training_loop.RunSettings(
            **dict(save_every=2, keep_every=1) | settings
        ),
        privacy=privacy,
    )
    nothing = contextlib.nullcontext()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(
        io.StringIO()
    ), self.assertRaises(_Killed) if kill_in else nothing:
      asyncio.run(training_loop.run(built))

  def saved(self, run: str) -> dict[int, str]:
    return checkpoints.state_paths(self.path(run, 'state'))

  def charged_rounds(self, run: str) -> list[dict[str, Any]]:
    """The ledger's lines for rounds."""
    text = pathlib.Path(self.path(run, run_dir.LEDGER)).read_text()
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if line['kind'] == 'round']

  def final_bits(self, run: str) -> dict[str, Any]:
    """The state, model, charges and metrics that a run ends with."""
    state = state_file.read_leaves(self.saved(run)[max(self.saved(run))])
    model = model_file.read(self.path(run, run_dir.MODEL))
    rows = pathlib.Path(self.path(run, run_dir.METRICS)).read_text()
    return {
        **{name: repr(value) for name, value in (state | model).items()
           # Both differ between any two runs.
           if name not in ('ledger/digest', 'noise/file_identity')},
        'rounds': [
            (line['round_num'], line['identity'], line['result'])
            for line in self.charged_rounds(run)
        ],
        'metrics': [row.split(',')[:2] for row in rows.splitlines()],
    }


class CrashTest(_TestCase):

  def test_a_run_killed_at_any_change_of_a_file_ends_in_the_same_bits(self):
    # One state is kept: with its secrets, or with those of the one before.
    settings = dict(kind='min_sep', num_rounds=3, keep_last=1, keep_every=0)
    with _disk_changes(self.root) as changes:
      self.train('whole', **settings)
    whole = self.final_bits('whole')
    self.assertLen(whole['rounds'], 3)
    # States 0, 2 and 3 are saved, each with secrets; the end erases these.
    self.assertEqual(changes.count('replace secrets.safetensors'), 3)
    self.assertEqual(changes.count('remove secrets.safetensors'), 1)
    self.assertIn('write ledger.jsonl', changes)
    self.assertIn('replace metrics.csv', changes)
    for number, change in enumerate(changes):
      run = f'killed_{number}'
      with _disk_changes(self.root, kill_at=number):
        with self.assertRaises(_Killed):
          self.train(run, **settings)
      self.train(run, **settings)
      self.assertEqual(self.final_bits(run), whole, change)
      self.assertEmpty(
          [name for name in os.listdir(self.path(run)) if 'secrets' in name]
      )


def _round_weights(
    state: queries.QueryState, *, num_buffers: int, num_rounds: int
) -> np.ndarray:
  """Weights of the rounds' noise in each buffer, [num_buffers, num_rounds]."""
  decays = np.array(state.buf_decay, float) / 2**strategies.FRACTION_BITS
  if len(decays) == num_buffers:
    return decays[:, np.newaxis] ** np.arange(num_rounds - 1, -1, -1)
  # A banded strategy keeps the noise of single rounds, the newest first.
  return np.eye(num_rounds)[::-1][:num_buffers]


class SecretsTest(_TestCase):

  @contextlib.contextmanager
  def round_keys(self) -> Iterator[list[bytes]]:
    """Lists the noise keys of the rounds that are run meanwhile, in order."""
    found = []
    set_noise_key = fed_avg.set_noise_key

    def set_key(state, key):
      found.append(keys.to_bytes(key))
      return set_noise_key(state, key)

    with mock.patch.object(fed_avg, 'set_noise_key', set_key):
      yield found

  def derivable_keys(self, run: str) -> set[bytes]:
    """All keys that can be derived from a run's secrets and its ledger."""
    identities = [line['identity'] for line in self.charged_rounds(run)]
    data = pathlib.Path(self.path(run, run_dir.SECRETS)).read_bytes()
    size, found = keys.NUM_BYTES, set()
    # Any 32 bytes of the file may be a key.
    for start in range(len(data) - size + 1):
      key = keys.from_bytes(data[start : start + size])
      for _ in range(_NUM_ROUNDS):
        found |= {keys.to_bytes(key)} | {
            keys.to_bytes(keys.derive(key, purpose=identity))
            for identity in identities
        }
        key = keys.derive(key, purpose='next round')
    return found

  @parameterized.parameters('poisson', 'min_sep')
  def test_the_folder_of_an_ended_run_holds_no_key_and_no_noise(self, kind):
    buffers = []
    join = private_rounds.with_query_state

    def keep(state, **changes):
      buffers.extend(
          value['w'].tobytes() for value in [changes.get('buffers')] if value
      )
      return join(state, **changes)

    with seen.drawn_keys() as drawn, mock.patch.object(
        private_rounds, 'with_query_state', keep
    ):
      self.train('run', kind, save_every=1, privacy=_DRAWN)
    self.assertCountEqual(self.saved('run'), range(_NUM_ROUNDS + 1))
    # Each round has a key of the run, one of the sampler, and its own.
    self.assertGreater(len(drawn), 2 * _NUM_ROUNDS)
    self.assertEqual(len(buffers) >= _NUM_ROUNDS, kind == 'min_sep')
    self.assertEmpty(seen.files_with({*drawn, *buffers}, self.path('run')))

  @parameterized.parameters('poisson', 'min_sep')
  def test_a_stolen_folder_reveals_keys_of_later_rounds_but_of_none_before(
      self, kind
  ):
    with self.round_keys() as round_keys:
      self.train('run', kind, kill_in=4, privacy=_DRAWN)
    self.assertLen(set(round_keys), 4)
    derivable = self.derivable_keys('run')
    # State 2 was the last one saved: rounds 3 and 4 can be repeated from it.
    self.assertEqual(
        [key in derivable for key in round_keys], [False, False, True, True]
    )
    # No file holds a round's key as it is.
    self.assertEmpty(seen.files_with(round_keys, self.path('run')))

  @parameterized.named_parameters(
      # With correlated noise the file is as sensitive as the updates; with
      # independent noise, earlier rounds are safe.
      ('banded', _correlated(strategies.optimize_banded(
          num_rounds=9, num_bands=4
      )), 3),
      ('blt', _correlated(strategies.optimize(
          num_rounds=9, min_sep=3, num_buffers=2
      )), 2),
      ('independent', queries.PerLayerClipSumQuery, 0),
  )
  def test_secrets_reveal_sums_of_earlier_rounds_where_noise_is_correlated(
      self, build_query, num_sums
  ):
    query = build_query(
        tf.TensorSpec([4], tf.float32), l2_norm_clip=1.0, noise_multiplier=8.0
    )
    state, key = query.initial_global_state(), keys.draw()
    grid_step = float(query.grid_step(state))
    sums = np.random.default_rng(0).uniform(-3, 3, [5, 4])
    sums = np.round(sums / grid_step)
    released = []
    for total in sums:
      noised, state, event = query.get_noised_result(
          tf.constant(total, tf.int64), queries.set_noise_key(state, key)
      )
      key = keys.derive(key, purpose='next round')
      released.append(np.float32(noised))
    saved = run_state.RunState(
        runs.process_state((), query_state=state, event=event),
        (),
        ledger_lib.Head(5, 'hash'),
        private_rounds.NoiseState(key, np.int64(0)),
        (),
    )
    with run_dir.RunDir(self.path('run'), configuration='') as folder:
      asyncio.run(run_state.save(folder, saved, 5))

    # An attacker has the secrets and what was released.
    secrets = state_file.read_leaves(self.path('run', run_dir.SECRETS))
    buffers = secrets.get('buffers', np.zeros([0, 4])) * grid_step / 2**16
    weights = _round_weights(state, num_buffers=len(buffers), num_rounds=5)
    found = weights @ np.array(released) - buffers
    self.assertLen(found, num_sums)
    np.testing.assert_allclose(found, weights @ sums * grid_step, atol=1e-5)
    # The saved key gives other noise than that of earlier rounds.
    again = query.get_noised_result(
        tf.zeros([4], tf.int64),
        queries.set_noise_key(
            query.initial_global_state(), secrets['noise/key']
        ),
    )[0]
    for value, total in zip(released, sums):
      self.assertGreater(np.abs(value - again - total * grid_step).max(), 0.1)

  def test_secrets_that_are_replaced_or_erased_are_overwritten(self):
    with contextlib.ExitStack() as stack:

      def hold(name):
        path = self.path('run', name)
        return stack.enter_context(open(path, 'rb')), os.path.getsize(path)

      self.train('run', kill_in=1)
      shutil.copy(
          self.path('run', run_dir.SECRETS),
          self.path('run', f'{run_dir.SECRETS}.partial'),
      )
      held = [hold(run_dir.SECRETS), hold(f'{run_dir.SECRETS}.partial')]
      self.train('run', kill_in=4)
      held.append(hold(run_dir.SECRETS))
      self.train('run')
      for file, size in held:
        self.assertEqual(file.read(), bytes(size))

  def test_only_the_owner_may_read_states_and_secrets(self):
    before = os.umask(0o022)
    try:
      self.train('run', kill_in=4)
    finally:
      os.umask(before)
    paths = [self.path('run', run_dir.SECRETS), *self.saved('run').values()]
    for path in paths:
      self.assertEqual(os.stat(path).st_mode & 0o777, 0o600, path)


class FieldsTest(parameterized.TestCase):

  def test_each_field_of_a_query_s_state_is_public_or_a_secret(self):
    # `noise_key` belongs to one round and is zeroed after it. If a new field
    # holds a key or unreleased noise, `run_state` must move it to the secrets.
    public = {
        'l2_norm_clip', 'noise_multiplier', 'counter', 'layer_clips',
        'output_scale', 'buf_decay', 'layer_noise', 'layer_shares',
    }
    self.assertEqual(
        {*queries.QueryState._fields}, public | {'noise_key', 'buffers'}
    )


class PublicTest(_TestCase):

  def test_a_run_on_public_data_resumes_from_its_seed_and_has_no_secrets(self):
    with seen.drawn_keys() as drawn:
      self.train('whole', 'public')
      self.train('run', 'public', kill_in=4)
      self.assertFalse(os.path.exists(self.path('run', run_dir.SECRETS)))
      self.train('run', 'public', num_rounds=4)
      # Also after its end.
      self.train('run', 'public')
    self.assertEmpty(seen.files_with(drawn, self.root))
    whole, run = (
        {
            name: repr(value)
            for name, value in state_file.read_leaves(
                self.saved(name)[_NUM_ROUNDS]
            ).items()
        }
        for name in ('whole', 'run')
    )
    self.assertEqual(whole, run)


class OtherClientsTest(_TestCase):
  """Data that change while a run is interrupted."""

  # All but 'g' move to the group before: 'd' had round 0, and would have
  # round 2 of three rounds a pass.
  _OTHERS = tuple('bcdefg')

  def test_groups_of_other_clients_are_refused(self):
    self.train('run', 'min_sep', privacy=_DRAWN, kill_in=2)
    with self.assertRaisesRegex(ValueError, '^the private clients are others'):
      self.train('run', 'min_sep', ids=self._OTHERS, privacy=_DRAWN)
    self.assertLen(self.charged_rounds('run'), 2)
    # With the old data the run resumes.
    self.train('run', 'min_sep', privacy=_DRAWN)
    self.assertLen(self.charged_rounds('run'), _NUM_ROUNDS)

  def test_states_do_not_reveal_the_list_of_clients(self):
    self.train('run', 'min_sep', kill_in=3, privacy=_DRAWN)
    groups = cohorts.min_sep(
        _IDS, cohort_size=_COHORT_SIZE, min_sep=_SEPARATION
    ).initial_state().groups
    self.assertEqual(
        seen.files_with([groups.encode()], self.path('run')),
        [self.path('run', run_dir.SECRETS)],
    )

  def test_new_clients_are_charged_with_the_new_population(self):
    self.train('run', kill_in=4)
    self.train('run', ids=tuple('abcdefgh'))
    self.assertEqual(
        [
            line['cost']['sampling']['population']
            for line in self.charged_rounds('run')
        ],
        [6, 6, 6, 6, 8, 8, 8],
    )


class OtherNoiseTest(_TestCase):
  """Settings that may change when a run is resumed, and noise follows."""

  def test_another_max_failed_share_is_refused_with_distributed_noise(self):
    # Otherwise the ledger would charge the old amount of noise.
    self.train('run', 'fixed_size', kill_in=2)
    with self.assertRaisesRegex(ValueError, 'MAX_FAILED_SHARE.* 2 of 2.* 1 of'):
      self.train('run', 'fixed_size', min_clients=1)
    self.train('run', 'fixed_size')
    self.assertEqual(
        [line['cost']['secure_sum']['min_clients']
         for line in self.charged_rounds('run')],
        [2] * _NUM_ROUNDS,
    )


class LostTest(_TestCase):
  """States or secrets that are damaged, missing or of another time."""

  def resume(self, run: str, kind: str = 'poisson') -> list[str]:
    """Trains to the end; returns the logged lines about new keys."""
    with self.assertLogs('absl', 'WARNING') as logs:
      self.train(run, kind, privacy=_DRAWN)
    return [line for line in logs.output if 'new keys' in line]

  def stop(self, run: str, kind: str = 'poisson') -> None:
    """Starts a run and kills it: 4 rounds are charged, states 0 and 2 saved."""
    self.train(run, kind, kill_in=4, privacy=_DRAWN)
    self.assertCountEqual(self.saved(run), [0, 2])
    self.assertLen(self.charged_rounds(run), 4)

  def test_a_removed_state_means_new_keys_and_charges_its_rounds_again(self):
    self.stop('run')
    fakes.damage(self.saved('run')[2], offset=64)
    with self.assertRaisesRegex(ValueError, 'state_00000002.* remove it to'):
      self.train('run', privacy=_DRAWN)
    os.remove(self.saved('run')[2])
    (line,) = self.resume('run')
    self.assertRegex(
        line, r'secrets\.safetensors belongs to state 2: .* from state 0'
    )
    # Rounds 1 to 4, and once more 1 to 5.
    lines = self.charged_rounds('run')
    self.assertEqual(
        [line['round_num'] for line in lines], [0, 1, 2, 3, 0, 1, 2, 3, 4]
    )
    self.assertLen({line['identity'] for line in lines}, 9)

  @parameterized.parameters(True, False)
  def test_lost_secrets_mean_new_keys_and_charge_later_rounds_again(
      self, is_there
  ):
    self.stop('run')
    path = self.path('run', run_dir.SECRETS)
    if is_there:
      fakes.damage(path, offset=64)
    else:
      os.remove(path)
    (line,) = self.resume('run')
    self.assertIn('missing, as after the end of a run, or damaged: ', line)
    self.assertEqual(
        [line['round_num'] for line in self.charged_rounds('run')],
        [0, 1, 2, 3, 2, 3, 4],
    )

  def test_new_keys_are_on_disk_before_the_first_round_under_them(self):
    self.stop('run')
    os.remove(self.path('run', run_dir.SECRETS))
    self.train('run', kill_in=4, save_every=9, privacy=_DRAWN)
    self.train('run', privacy=_DRAWN)
    self.assertEqual(
        [line['round_num'] for line in self.charged_rounds('run')],
        [0, 1, 2, 3, 2, 3, 4],
    )

  def test_older_secrets_put_back_repeat_the_rounds_in_the_same_bits(self):
    self.train('whole')
    self.train('run', kill_in=1)
    kept = pathlib.Path(self.path('run', run_dir.SECRETS)).read_bytes()
    self.train('run', kill_in=4)
    pathlib.Path(self.path('run', run_dir.SECRETS)).write_bytes(kept)
    self.train('run')
    self.assertEqual(self.final_bits('run'), self.final_bits('whole'))

  def test_secrets_of_another_run_are_not_used(self):
    self.stop('run')
    self.stop('other')
    shutil.copy(
        self.path('other', run_dir.SECRETS), self.path('run', run_dir.SECRETS)
    )
    (line,) = self.resume('run')
    # Found by the ledger's head; a ledger in another file is a second guard.
    self.assertIn('secrets.safetensors belongs to state 2', line)
    self.assertLen(self.charged_rounds('run'), 7)

  def test_an_erased_run_resumes_under_new_keys(self):
    self.stop('run', 'min_sep')
    kept = {
        name: pathlib.Path(self.path('run', name)).read_bytes()
        for name in os.listdir(self.path('run'))
        if os.path.isfile(self.path('run', name)) and name != 'run.lock'
    }
    self.assertIn('secrets.safetensors', kept)
    line = run_dir.erase_secrets(self.path('run'))
    self.assertIn('secrets.safetensors is erased', line)
    self.assertNotIn('\n', line)
    self.assertEmpty(
        [name for name in os.listdir(self.path('run')) if 'secrets' in name]
    )
    del kept['secrets.safetensors']
    for name, content in kept.items():
      self.assertEqual(
          pathlib.Path(self.path('run', name)).read_bytes(), content, name
      )
    self.assertIn(
        'no secrets.safetensors', run_dir.erase_secrets(self.path('run'))
    )
    self.assertLen(self.resume('run', 'min_sep'), 1)
    self.assertEqual(
        [line['round_num'] for line in self.charged_rounds('run')],
        [0, 1, 2, 3, 0, 1, 2],
    )

  def test_a_run_in_progress_is_not_erased(self):
    self.stop('run')
    with run_dir.RunDir(self.path('run'), configuration=''):
      with self.assertRaisesRegex(ValueError, 'is in use by process'):
        run_dir.erase_secrets(self.path('run'))
    self.assertTrue(os.path.exists(self.path('run', run_dir.SECRETS)))

  def test_more_rounds_after_the_end_are_charged_once(self):
    # The second time nothing is left to do, and nothing is logged.
    for _ in range(2):
      with self.assertNoLogs('absl', 'WARNING'):
        self.train('run', num_rounds=3, privacy=_DRAWN)
      self.assertFalse(os.path.exists(self.path('run', run_dir.SECRETS)))
    self.assertLen(self.resume('run'), 1)
    self.assertEqual(
        [line['round_num'] for line in self.charged_rounds('run')],
        [0, 1, 2, 3, 4],
    )

  def test_lost_buffers_start_another_sequence(self):
    self.stop('run', 'min_sep')
    os.remove(self.path('run', run_dir.SECRETS))
    self.resume('run', 'min_sep')
    # Four rounds, of which two are after state 2; then three with new noise.
    self.assertEqual(
        [line['round_num'] for line in self.charged_rounds('run')],
        [0, 1, 2, 3, 0, 1, 2],
    )
    leaves = state_file.read_leaves(self.saved('run')[5])
    self.assertEqual(leaves['process/aggregator/query_state/counter'], 3)
    groups = ledger_lib.read(self.path('run', run_dir.LEDGER)).rounds
    self.assertEqual([group.count for group in groups], [4, 3])
