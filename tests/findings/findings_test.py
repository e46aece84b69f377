"""The groups of findings, and what is made of runs' folders. Trains nothing."""

import json
import os
import re
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from tests import experiment_files
from tff_asr import config
from tff_asr.findings import experiments
from tff_asr.findings import groups
from tff_asr.findings import jobs
from tff_asr.findings import program
from tff_asr.findings import recipes
from tff_asr.findings import report
from tff_asr.findings import table

_SEED = experiments.Recipe(
    name='seed',
    program=experiments.CENTRAL,
    experiment='an4_seed',
    speakers='public',
)
_FEDERATED = experiments.Recipe(
    name='federated',
    program=experiments.FEDERATED,
    experiment='an4_federated',
    parent=_SEED,
)
_SEED_ROW = experiments.Row(
    label='seed', recipe=_SEED, seeds=(None,), series=None
)


def _row(**changes) -> experiments.Row:
  return experiments.Row(**{
      'label': 'federated',
      'recipe': _FEDERATED,
      'against': 'seed',
      'seeds': (1, 2),
      **changes,
  })


def _group(*rows: experiments.Row, **changes) -> experiments.Group:
  return experiments.Group(**{
      'name': 'x', 'title': 'X', 'question': 'Why?', 'rows': rows, **changes
  })


class GroupsTest(parameterized.TestCase):
  """The data of all groups."""

  def test_names_are_of_one_group(self):
    names = [group.name for group in groups.ALL]
    self.assertCountEqual(names, ['table', *'abcdefghi'])

  @parameterized.parameters(*groups.ALL)
  def test_rows_and_claims_name_each_other(self, group):
    labels = [row.label for row in group.rows]
    self.assertCountEqual(labels, set(labels))
    for row in group.rows:
      self.assertIn(row.against, [None, *labels])
      self.assertNotEqual(row.against, row.label)
    for claim in group.claims:
      self.assertContainsSubset(claim.weights, labels)
      # A difference of rates: what all rows have in common falls out.
      self.assertAlmostEqual(sum(claim.weights.values()), 0)
    for name in group.columns:
      self.assertIn(name, table._COLUMNS)

  def test_runs_of_a_name_are_trained_alike(self):
    runs = {}
    for group in groups.ALL:
      for row in group.rows:
        for seed in row.seeds:
          for rate in row.rates or (None,):
            run = experiments.Run(row.recipe, seed, rate)
            known = runs.setdefault(run.name, run)
            self.assertEqual(known, run)
            self.assertEqual(known.settings, run.settings)
            if row.recipe.parent is not None:
              parent = experiments.Run(row.recipe.parent)
              self.assertEqual(runs.setdefault(parent.name, parent), parent)
    self.assertGreater(len(runs), 100)

  @parameterized.parameters(*groups.ALL)
  def test_the_settings_of_all_runs_are_known(self, group):
    recipes = {}
    for row in group.rows:
      rate = row.rates[0] if row.rates else None
      recipes[row.recipe.name] = experiments.Run(row.recipe, row.seeds[0], rate)
    for run in recipes.values():
      experiment = f'gin/experiments/{run.recipe.experiment}.gin'
      config.bind(
          experiment_files.program(experiment),
          gin_files=[
              experiment, *run.recipe.model.gin_files, *run.recipe.gin_files
          ],
          gin_params=[f'{k} = {v}' for k, v in run.settings.items()],
      )
      # As `experiments.is_trained` finds them in the saved configuration.
      found = dict(re.findall(r'^(\w+) = (.+)$', config.text(), re.MULTILINE))
      for name, value in run.settings.items():
        self.assertEqual(found[name], str(value))

  def test_noise_multipliers_are_those_of_the_headers(self):
    # sqrt(443744) = 666.1; .05 * 8 / 666.1 = .00060, .16 * 8 / 666.1 = .0019.
    self.assertEqual(recipes.noise_multiplier(0.05), 0.0006)
    self.assertEqual(recipes.noise_multiplier(0.16), 0.0019)

  def test_unknown_groups_are_named(self):
    with self.assertRaisesRegex(ValueError, "no group 'z': take table, c, a"):
      experiments.select(groups.ALL, ['a', 'z'])


class RunsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.folders = jobs.Folders('bin', 'data', self.root)

  def finish(
      self,
      name: str,
      *,
      errors: tuple[int, int] | None = None,
      dev: float = 0.5,
      noise_multiplier: float | None = None,
      configuration: str = '',
      metrics: str = '',
  ) -> None:
    """Makes the folder of a run, evaluated if it has errors of ten words."""
    folder = os.path.join(self.root, name)
    os.makedirs(folder, exist_ok=True)
    # 9 < 80, though not as text.
    results = {'seconds': 60.0, 'dev_word_error_rate': {'9': 0.9, '80': dev}}
    if noise_multiplier is not None:
      results['bytes_per_client_and_round'] = {'down': 1_780_000, 'up': 2000}
      results['privacy'] = {
          'epsilon': 12.0,
          'groups': [{
              'noise_multiplier': noise_multiplier,
              'cohort_size': 8,
              'rounds': 80,
          }],
      }
    files = {
        'results.json': json.dumps(results),
        'config.gin': configuration,
        'metrics.csv': metrics or 'round\n',
    }
    if errors is not None:
      files['test.json'] = json.dumps({
          'word_error_rate': sum(errors) / 20,
          'speakers': {
              speaker: {
                  'substitutions': count,
                  'deletions': 0,
                  'insertions': 0,
                  'words': 10,
              }
              for speaker, count in zip('ab', errors)
          },
      })
    for file, text in files.items():
      with open(os.path.join(folder, file), 'w', encoding='utf-8') as f:
        f.write(text)

  def names(self, *groups: experiments.Group, failed=()) -> list[str]:
    wanted = jobs.missing(groups, folders=self.folders)
    return [job.name for job in wanted(frozenset(failed))]

  def report(self, *groups: experiments.Group) -> str:
    path = os.path.join(self.root, 'results.md')
    report.write(groups, runs_dir=self.root, path=path)
    with open(path, encoding='utf-8') as f:
      return f.read()

  def test_a_run_waits_for_the_one_that_it_starts_from(self):
    group = _group(_row())
    self.assertEqual(set(self.names(group)), {'seed'})
    self.finish('seed')
    self.assertEqual(self.names(group), ['federated_1', 'federated_2'])
    self.finish('federated_1')
    self.assertEqual(self.names(group), ['federated_2'])

  def test_what_a_failed_run_was_for_is_left_out(self):
    group = _group(_row())
    self.assertEqual(self.names(group, failed=['seed']), [])
    self.finish('seed')
    self.finish('federated_1')
    self.assertEqual(
        self.names(group, failed=['federated_2']), ['evaluate_x_0']
    )

  def test_models_are_decoded_when_a_group_is_trained_each_once(self):
    conv = experiments.Model(gin_files=('gin/models/conv.gin',))
    other = _row(
        label='other', recipe=_FEDERATED.but('other', model=conv), seeds=(1,)
    )
    group = _group(_SEED_ROW, other)
    self.finish('seed')
    self.assertEqual(self.names(group), ['other_1'])
    self.finish('other_1')
    self.assertEqual(self.names(group), ['evaluate_x_0', 'evaluate_x_1'])
    self.finish('seed', errors=(1, 2))
    (job,) = jobs.missing([group], folders=self.folders)(frozenset())
    self.assertEqual(job.name, 'evaluate_x_1')
    self.assertIn('--gin_file=gin/models/conv.gin', job.command)
    runs = [os.path.join(self.root, 'other_1')]
    self.assertIn(f'--gin_param=RUNS = {runs}', job.command)
    self.finish('other_1', errors=(1, 2))
    self.assertEqual(self.names(group), [])

  def test_a_command_has_files_settings_and_folders(self):
    self.finish('seed')
    recipe = _FEDERATED.having('few', COHORT_SIZE=2).but(
        'few', gin_files=('gin/optimizers/sgd.gin',)
    )
    group = _group(_row(recipe=recipe, seeds=(3, 4), rates=(0.5, 1.0)))
    first, _ = jobs.missing([group], folders=self.folders)(frozenset())
    self.assertEqual(first.name, 'few_rate0.5_3')
    self.assertEqual(
        first.command[1:],
        (
            'bin/train_federated.py',
            f'--output_dir={self.root}/few_rate0.5_3',
            '--gin_file=gin/experiments/an4_federated.gin',
            '--gin_file=gin/optimizers/sgd.gin',
            '--gin_param=COHORT_SIZE = 2',
            '--gin_param=SEED = 3',
            '--gin_param=SERVER_LEARNING_RATE = 0.5',
            "--gin_param=PRIVATE_DIR = 'data/train.private'",
            "--gin_param=DEV_DIR = 'data/train.dev'",
            f"--gin_param=INIT_FROM_RUN = '{self.root}/seed'",
        ),
    )
    self.assertEqual(first.log, f'{self.root}/logs/few_rate0.5_3.log')

  def test_further_seeds_have_the_rate_that_is_best_on_dev(self):
    row = _row(rates=(0.1, 0.2, 0.3), seeds=(1, 2))
    group = _group(_SEED_ROW, row, columns=('rate', 'tried'))
    self.finish('seed', errors=(9, 9))
    self.finish('federated_rate0.1_1', dev=0.4, errors=(8, 8))
    self.finish('federated_rate0.2_1', dev=0.3, errors=(7, 7))
    self.assertEqual(self.names(group), ['federated_rate0.3_1'])
    # No rate is chosen before all are there.
    self.assertIn('Not run yet: federated.', self.report(group))
    # Best on the test speakers, which is not to be looked at.
    self.finish('federated_rate0.3_1', dev=0.45, errors=(1, 1))
    self.assertEqual(self.names(group), ['federated_rate0.2_2'])
    self.finish('federated_rate0.2_2', errors=(5, 5))
    text = self.report(group)
    # (.7 + .5) / 2, and .1 sqrt(2).
    self.assertRegex(text, r'\| federated +\| 60\.0 \+- 14\.1 ')
    self.assertRegex(text, r'\| 0\.2 +\| 0\.1: 40\.0, 0\.2: 30\.0, 0\.3: 45\.0')

  def test_only_the_rate_that_is_taken_is_decoded(self):
    self.finish('seed', errors=(9, 9))
    self.finish('federated_rate0.1_1', dev=0.4)
    self.finish('federated_rate0.2_1', dev=0.3)
    group = _group(_row(rates=(0.1, 0.2), seeds=(1,)))
    (job,) = jobs.missing([group], folders=self.folders)(frozenset())
    runs = [os.path.join(self.root, 'federated_rate0.2_1')]
    self.assertIn(f'--gin_param=RUNS = {runs}', job.command)

  def test_a_run_with_other_settings_is_refused(self):
    self.finish('seed')
    self.finish('federated_1', configuration='COHORT_SIZE = 4\n')
    recipe = _FEDERATED.but('federated', settings={'COHORT_SIZE': 8})
    with self.assertRaisesRegex(
        ValueError, 'federated_1 was run with COHORT_SIZE = 4, which is 8 now'
    ):
      self.names(_group(_row(recipe=recipe)))

  def test_claims_are_judged_by_their_intervals(self):
    self.finish('seed', errors=(6, 8))
    self.finish('federated_1', errors=(4, 6))
    self.finish('mixed_1', errors=(4, 10))
    rows = (
        _SEED_ROW,
        _row(seeds=(1,)),
        _row(label='mixed', recipe=_FEDERATED.but('mixed'), seeds=(1,)),
    )
    minus = recipes.minus
    claims = [
        # Two of ten words less for both speakers: -20 points without doubt.
        (minus(['federated'], ['seed']), -1, '-20.0', 'holds'),
        (minus(['federated'], ['seed']), 1, '-20.0', 'the opposite'),
        (minus(['federated'], ['seed']), 0, '-20.0', 'does not hold'),
        # Two less for one, two more for the other.
        (minus(['mixed'], ['seed']), -1, '+0.0', 'not decided: the interval'),
        (minus(['mixed'], ['seed']), 0, '+0.0', 'no difference is seen'),
        # The mean of both, 0.6, against .7.
        (minus(['mixed', 'federated'], ['seed']), -1, '-10.0', 'not decided'),
    ]
    group = _group(
        *rows,
        claims=tuple(
            experiments.Claim(f'Claim {number}.', weights, expected)
            for number, (weights, expected, *_) in enumerate(claims)
        ),
    )
    text = self.report(group)
    for number, (_, _, figure, verdict) in enumerate(claims):
      self.assertRegex(
          ' '.join(text.split()),
          rf'Claim {number}\. {re.escape(figure)} \([^)]*\): \*\*{verdict}',
      )
      self.assertRegex(text, rf'\| Claim {number}\. +\| {verdict}')

  def test_another_seed_could_change_what_runs_differ_by(self):
    self.finish('seed', errors=(6, 8))
    # Rates of .4, .5 and .6, and .3, .5 and .7: variances .01 and .04.
    for name, spread in (('federated', 1), ('mixed', 2)):
      for seed, extra in enumerate((-spread, 0, spread), start=1):
        self.finish(f'{name}_{seed}', errors=(4 + extra, 6 + extra))
    self.finish('one_1', errors=(2, 4))
    rows = (
        _SEED_ROW,
        _row(seeds=(1, 2, 3)),
        _row(label='mixed', recipe=_FEDERATED.but('mixed'), seeds=(1, 2, 3)),
        _row(label='not run', recipe=_FEDERATED.but('not_run')),
        _row(label='one', recipe=_FEDERATED.but('one'), seeds=(1,),
             against='mixed'),
    )
    group = _group(*rows)
    deviation = table.pool_deviation([group, group], runs_dir=self.root)
    self.assertEqual(deviation.num_rows, 2)
    self.assertAlmostEqual(deviation.value, 0.025**0.5)
    measured, absent = table.measure(
        group, runs_dir=self.root, deviation=deviation
    )
    self.assertEqual(absent, ['not run'])
    # Nothing but the seed: one run, minus the mean of three; Student's 12.706.
    width = 12.706 * (0.025 + 0.025 / 3) ** 0.5
    np.testing.assert_allclose(
        measured['one'].difference, (-0.2, -0.2 - width, -0.2 + width),
        rtol=1e-4,
    )
    # The seed model is what it is.
    np.testing.assert_allclose(
        measured['federated'].difference.high,
        -0.2 + 12.706 * (0.025 / 3) ** 0.5,
        rtol=1e-4,
    )
    text = ' '.join(self.report(group).split())
    self.assertIn(
        'a seed changes a run by 15.8 points, the standard deviation of 2 rows',
        text,
    )

  def test_a_claim_without_its_runs_is_not_judged(self):
    self.finish('seed', errors=(6, 8))
    claim = experiments.Claim('Claimed.', {'federated': 1, 'seed': -1}, -1)
    text = self.report(_group(_SEED_ROW, _row(), claims=(claim,)))
    self.assertIn('Not run yet: federated.', text)
    self.assertRegex(text, r'\| x +\| Claimed\. +\| not run +\|')
    self.assertEqual(text.count('Claimed'), 1)

  def test_columns_by_hand(self):
    metrics = (
        'round,not_private/num_utterances,not_private/signal_norm,'
        'aggregator/noise_norm\n1,10,0.5,2\n2,20,1.5,2\n'
    )
    self.finish('seed', errors=(6, 8), metrics='round,num_utterances\n5,40\n')
    self.finish(
        'federated_1', errors=(4, 6), noise_multiplier=0.006, metrics=metrics
    )
    columns = (
        'minus seed', 'epsilon', 'deployed', 'noise / signal', 'utterances',
        'MB', 'seconds', 'rate', 'tried',
    )
    group = _group(
        _SEED_ROW,
        _row(seeds=(1,), against=None),
        columns=columns,
        deployment=(2_000, 1_000_000),
    )
    seed, federated = [
        [cell.strip() for cell in line.split('|')[1:-1]]
        for line in self.report(group).splitlines()
        if re.match(r'\| (seed|federated) ', line)
    ]
    self.assertEqual(
        seed,
        ['seed', '70.0', '', '', '', '', '', '', '40', '', '60', '', ''],
    )
    self.assertEqual(
        federated,
        [
            'federated', '50.0', '', '', '-20.0 (-20.0 to -20.0)', '12',
            # bin/compute_epsilon.py --sigma_mean=7.5e-4 --cohort_size=2000
            # --population=1000000 --rounds=80
            '0.448', '2', '30', '1.78 + 0.00', '60', '', '',
        ],
    )

  def test_plots_are_drawn_of_what_is_measured(self):
    self.finish('seed', errors=(6, 8))
    self.finish('federated_1', errors=(4, 6))
    self.finish('few_1', errors=(5, 5))
    few = _FEDERATED.but('few')
    groups = [
        # Numbers with a gap, words, and no point, of which there is no plot.
        _group(
            _row(seeds=(1,), label='central', series='central', x=2),
            _row(label='few', recipe=few, seeds=(1,), against='central',
                 series='federated', x=2),
            x_label='cohort', name='gap',
        ),
        _group(_SEED_ROW, _row(seeds=(1,), x='LAMB'), x_label='y', name='word'),
        _group(_SEED_ROW, _row(), x_label='y', name='line'),
        _group(_row(recipe=_FEDERATED.but('other')), x_label='y', name='none'),
        _group(_SEED_ROW, name='without'),
    ]
    text = self.report(*groups)
    for name in ('gap', 'word'):
      self.assertIn(f'](results/{name}.png)', text)
      with open(os.path.join(self.root, 'results', f'{name}.png'), 'rb') as f:
        self.assertStartsWith(f.read(), b'\x89PNG')
    self.assertCountEqual(
        os.listdir(os.path.join(self.root, 'results')), ['gap.png', 'word.png']
    )

  def test_what_is_not_run_is_said_to_be_so(self):
    text = self.report(*groups.ALL)
    self.assertEqual(text.count('\nNot run.\n'), len(groups.ALL))
    claims = [claim for group in groups.ALL for claim in group.claims]
    lines = [line for line in text.splitlines() if line.startswith('|')]
    self.assertLen(lines, 2 + len(claims))
    for line in lines[2:]:
      self.assertRegex(line, r'\| not run +\|$')

  def test_bad_arguments_are_named_together(self):
    with self.assertRaises(ValueError) as caught:
      program.run(
          group_names=['a'],
          folders=self.folders,
          report=os.path.join(self.root, 'results.md'),
          source='nowhere',
          num_at_once=0,
      )
    self.assertRegex(
        str(caught.exception), '(?s)nowhere is not a folder.*num_at_once'
    )
    for names, message in (
        (['a'], 'has no shards of AN4'), ([], 'holds no runs')
    ):
      folders = jobs.Folders(
          'bin', os.path.join(self.root, 'data'), os.path.join(self.root, 'no')
      )
      with self.assertRaisesRegex(ValueError, message):
        program.run(
            group_names=names,
            folders=folders,
            report=os.path.join(self.root, 'results.md'),
        )
    self.assertEqual(os.listdir(self.root), [])


if __name__ == '__main__':
  absltest.main()
