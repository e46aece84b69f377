"""Tests of tff_asr.programs.dry_run."""

import asyncio
import functools
import os
import re
from typing import Any
from unittest import mock

import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests.bin import in_process
from tests.bin import programs
from tests import fakes
from tests.learning import tiny
from tests.programs import runs
from tff_asr.data import client_data
from tff_asr.learning import layer_freeze
from tff_asr.models import best_rq
from tff_asr.models import ctc
from tff_asr.models import quantizer
from tff_asr.models import weights
from tff_asr.privacy import accounting
from tff_asr.privacy import ledger as ledger_lib
from tff_asr.privacy import queries
from tff_asr.privacy import privacy_report
from tff_asr.programs import central
from tff_asr.programs import dry_run
from tff_asr.programs import evaluation_rounds
from tff_asr.programs import pretraining
from tff_asr.programs import training_loop
from tff_asr.programs import warm_start
from tff_asr.storage import run_dir


def _predictor(recogniser: ctc.CtcModel) -> best_rq.BestRqModel:
  """A model for pre-training of a recogniser's encoder."""
  return best_rq.build(
      encoder=recogniser.encoder,
      quantizer=quantizer.RandomProjectionQuantizer(
          num_codes=16, num_stacked=3
      ),
  )


class DryRunTest(cases.TestCase):

  def test_federated_training_is_described_and_not_started(self):
    settings = (
        *programs.write_tiny(self.path('shards')),
        'NOISE_MULTIPLIER = 10.0', 'NUM_ROUNDS = 50', 'DELTA = 1e-5',
        'TARGET_EPSILON = 1.0', 'PRIVATE_EVALUATE_EVERY = 10',
        'EVALUATION_NOISE_MULTIPLIER = 20.0',
    )
    # Two people are too few for any figure: the limit is set aside.
    with mock.patch.object(evaluation_rounds, 'MAX_HALF_WIDTH', 100.0):
      finished = in_process.run(
          'bin/train_federated.py',
          '--dry_run',
          f'--output_dir={self.root}/run',
          '--gin_file=gin/experiments/quickstart_federated_dp.gin',
          '--gin_file=gin/programs/private_evaluation_rounds.gin',
          *(f'--gin_param={setting}' for setting in settings),
      )
    self.assertEqual(finished.code, 0, finished.stderr)
    self.assertFalse(os.path.exists(self.path('run')))
    group = functools.partial(
        accounting.RoundGroup,
        sampling=accounting.Sampling(
            kind='poisson', cohort_size=2, population=3
        ),
    )

    def charged(count, noise_multiplier=10.0):
      rounds = group(noise_multiplier=noise_multiplier, count=count)
      evaluations = group(noise_multiplier=20.0, count=count // 10)
      return [rounds, evaluations]

    epsilon = lambda *args: accounting.leading_epsilon(
        charged(*args), delta=1e-5
    )

    (count,) = map(
        lambda found: int(found.replace(',', '')),
        re.findall(r'parameters: +([\d,]+)', finished.stdout),
    )
    # PLD plans, as it is what reports lead with: RDP allows fewer rounds.
    last = max(
        count
        for count in range(1, 51)
        if accounting.epsilon(charged(count), delta=1e-5) <= 1
    )
    while epsilon(last + 1) <= 1:
      last += 1
    self.assertGreater(accounting.epsilon(charged(last), delta=1e-5), 1)
    self.assertLess(last, 50)
    report = privacy_report.PrivacyReport(
        rounds=tuple(charged(last)), delta=1e-5
    )
    for part in (
        # What private people said is private; sqrt(D) 10 / 2.
        f'noise / C:    {5 * count**0.5:.3g} on the mean of each round, all ',
        f'data:         3 speakers ({self.path("shards")})\n',
        'nothing was trained or written',
        'parameters:',
        '3 kept',
        'rounds:       50 at most',
        '2 of 3 speakers (poisson)',
        f'{report.epsilon_words} at the end; '
        f'TARGET_EPSILON = 1 ends the run after {last} (for all of them, '
        'NOISE_MULTIPLIER = ',
        ')\n',
        # 1.96 * 20 * hypot(1 / sqrt(.4), .5 / sqrt(.1)) / 2 = 43.8.
        'evaluations:  5 at most, of as many people each; the noise moves the '
        'WER by up to 4382.6 points (95 %); ',
    ):
      self.assertIn(part, finished.stdout)
    (enough,) = re.findall(r'NOISE_MULTIPLIER = ([\d.]+)', finished.stdout)
    self.assertLessEqual(epsilon(50, float(enough)), 1)
    # It is rounded up to three digits.
    self.assertGreater(epsilon(50, float(enough) - 0.11), 1)
    alone = accounting.leading_epsilon(
        [group(noise_multiplier=20.0, count=5)], delta=1e-5
    )
    self.assertIn(
        f'epsilon {privacy_report.format_epsilon(alone)} for them alone\n',
        finished.stdout,
    )
    self.assertNotIn('NOT PRIVATE', finished.stdout)
    self.assertNotIn('NUM_ROUNDS', finished.stdout)
    # Of two dev people, as there is no seed model to measure more of.
    self.assertRegex(
        finished.stdout,
        r'\ntime: +about \d+ min here if a person has 1 utterances, as in dev',
    )
    self.assertIn(
        '\nunit:         most speakers have one recording: unless each is a',
        finished.stdout,
    )
    self.assertLessEqual(finished.stdout.count('\n'), 14)

  def test_central_training_is_described(self):
    model = fakes.tiny_model(num_blocks=1)
    text = self.describe(
        central.CentralTraining,
        model=model,
        pipeline=fakes.tiny_pipeline(model),
        client_data=fakes.client_data({'ann': 1, 'bob': 1}),
        num_steps=7,
    )
    count = weights.num_parameters(model.specs)
    for part in (
        'A = 1\n',
        f'parameters:   {count:,}',
        # Adam's two moments, the weights, and the best of them: 4 floats each.
        f'{4 * 4 * count / 1e6:.1f} MB each, 3 kept',
        'steps:        7 at most',
        'not private',
    ):
      self.assertIn(part, text)
    self.assertEmpty(os.listdir(self.root))

  def describe(
      self, program: type[training_loop.TrainingRun], **arguments: Any
  ) -> str:
    built = runs.build(
        program,
        output_dir=self.path('run'),
        configuration='A = 1\n',
        optimizer=tff.learning.optimizers.build_adam(0.01),
        seed=1,
        **arguments,
    )
    return asyncio.run(dry_run.describe(built, verbose=True))

  def write_seed(self, model: best_rq.BestRqModel) -> str:
    """The folder of a public warm start that has ended."""
    run = self.path('warm')
    with run_dir.RunDir(run, configuration='') as folder:
      folder.write_model(model.initialize(tf.constant([1, 2])), tokens='')
    squares = {
        name: float(number) for number, name in enumerate(sorted(model.specs))
    }
    warm_start.write_scores(run, squares, specs=model.specs)
    return run

  def test_pretraining_is_described(self):
    recogniser = fakes.tiny_model(num_blocks=1)
    model = _predictor(recogniser)
    shards = fakes.write_split(
        self.path('shards'), {'ann': 3, 'bob': 2, 'cai': 1}
    )
    init_from_run = self.write_seed(model)
    describe = functools.partial(
        self.describe,
        pretraining.Pretraining,
        model=model,
        pipeline=fakes.tiny_pipeline(recogniser),
        client_data=client_data.load(shards),
        batch_size=3,
        num_steps=50,
    )
    build_query = functools.partial(
        queries.PerLayerClipSumQuery, l2_norm_clip=0.1, noise_multiplier=10.0
    )
    text = describe(
        build_query=build_query,
        delta=1e-3,
        init_from_run=init_from_run,
        freeze=layer_freeze.LayerFreeze(share=0.3),
    )
    # The lowest scores are those of the first names.
    specs = model.specs
    frozen = max(
        (sorted(specs)[:number] for number in range(len(specs))),
        key=lambda names: -abs(
            weights.num_parameters({n: specs[n] for n in names})
            - 0.3 * weights.num_parameters(specs)
        ),
    )
    count = weights.num_parameters(model.specs)
    trained = count - weights.num_parameters(
        {n: model.specs[n] for n in frozen}
    )
    report = privacy_report.PrivacyReport(
        rounds=(accounting.RoundGroup(
            sampling=accounting.Sampling(
                kind='poisson', cohort_size=3, population=6
            ),
            noise_multiplier=10.0,
            count=50,
        ),),
        delta=1e-3,
    )
    for part in (
        'A = 1\n',
        f'parameters:   {count:,}',
        f'trained:      {trained:,} of them; {len(frozen)} of '
        f'{len(model.specs)} tensors are frozen, with {count - trained:,} of ',
        'steps:        50 at most',
        'drawn:        3 of 6 examples (poisson)',
        f'epsilon:      {report.epsilon_words} at the end',
    ):
      self.assertIn(part, text)
    # Adam's two moments of what is trained, and the weights: 4 bytes each.
    size = 4 * (2 * trained + count) / 1e6
    self.assertIn(f'saved states: {size:.1f} MB each', text)
    self.assertFalse(os.path.exists(self.path('run')))
    text = describe(build_query=build_query, noise_seed=1)
    self.assertIn('infinite, NOT PRIVATE: NOISE_SEED fixes a key', text)
    # Public, nothing costs anything.
    self.assertIn('nothing is charged', describe())

  def plan(
      self,
      noise_multiplier: float,
      *,
      num_steps: int = 4,
      build_query=queries.PerLayerClipSumQuery,
      **settings: Any,
  ) -> str:
    """The line about epsilon: 3 of 6 examples a step, at delta 1e-3."""
    model = tiny.predictor()
    shards = self.path('shards')
    if not os.path.exists(shards):
      fakes.write_split(shards, {'ann': 3, 'bob': 2, 'cai': 1})
    text = self.describe(
        pretraining.Pretraining,
        model=model,
        pipeline=fakes.tiny_pipeline(model),
        client_data=client_data.load(shards),
        batch_size=3,
        num_steps=num_steps,
        build_query=functools.partial(
            build_query, l2_norm_clip=0.1, noise_multiplier=noise_multiplier
        ),
        delta=1e-3,
        **settings,
    )
    (line,) = re.findall('^epsilon: +(.*)$', text, re.MULTILINE)
    return line

  def test_not_private_has_the_reasons_of_the_privacy_report(self):
    self.assertRegex(
        self.plan(0.85, num_steps=20),
        r'^([\d.]+) by PLD, [\d.]+ by RDP at delta 0\.001 at the end; '
        r'NOT PRIVATE: epsilon is \1, above 10$',
    )
    self.assertRegex(
        self.plan(0.0),
        r'^infinite by RDP .*; NOT PRIVATE: no noise is added',
    )
    # What counts is where the run ends.
    self.assertNotIn('NOT PRIVATE', self.plan(
        0.85, num_steps=90, target_epsilon=9.0
    ))
    self.assertRegex(
        self.plan(0.85, num_steps=90, target_epsilon=25.0),
        r'TARGET_EPSILON = 25 .*; NOT PRIVATE: epsilon is [\d.]+, above 10$',
    )

  def test_the_smaller_bound_decides_what_is_not_private(self):
    self.assertRegex(
        self.plan(0.85, num_steps=10),
        r'^\d\.\d+ by PLD, 1\d\.\d by RDP at delta 0\.001 at the end$',
    )

  def test_invalidations_of_the_seed_run_are_shown(self):
    model = tiny.predictor()
    parent = self.path('parent')
    with run_dir.RunDir(parent, configuration='') as folder:
      path = folder.file(run_dir.LEDGER)
      with ledger_lib.create(
          path, privacy_unit='example', invalidations=['it leaks']
      ) as ledger:
        folder.write_model(
            model.initialize(tf.constant([1, 2])), tokens='', ledger=ledger.head
        )
    self.assertEqual(
        self.plan(10.0, init_from_run=parent),
        'infinite, NOT PRIVATE: it leaks.',
    )
