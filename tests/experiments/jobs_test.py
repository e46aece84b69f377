"""Tests of experiments.jobs: finding the next programs, and running them."""

import dataclasses
import hashlib
import os
import pathlib
import signal
import threading
import time

from experiments import design
from experiments import jobs
from tests.experiments import tiny


class MissingTest(tiny.TestCase):

  def names(self, study: design.Study, *failed: str) -> list[str]:
    found = jobs.missing(study, folders=self.folders, failed=set(failed))
    return [job.name for job in found]

  def test_a_run_waits_for_the_one_that_it_starts_from(self):
    study = tiny.study(tiny.row())
    self.assertEqual(self.names(study), ['seed'])
    self.assertEqual(self.names(study, 'seed'), [])
    self.finish('seed')
    self.assertEqual(self.names(study), ['federated_1', 'federated_2'])
    self.finish('federated_1')
    self.assertEqual(self.names(study), ['federated_2'])
    # What a failed run was for is left out.
    self.assertEqual(self.names(study, 'federated_2'), ['evaluate_x_0'])
    self.assertEqual(self.names(study, 'federated_2', 'evaluate_x_0'), [])

  def test_a_run_starts_from_its_parent_of_the_same_random_seed(self):
    recipe = tiny.FEDERATED.but('federated', parent_by_seed=True)
    study = tiny.study(tiny.row(recipe=recipe))
    self.assertEqual(self.names(study), ['seed_1', 'seed_2'])
    self.finish('seed_2')
    first, second = jobs.missing(study, folders=self.folders)
    self.assertEqual((first.name, second.name), ('seed_1', 'federated_2'))
    self.assertIn('--gin_param=SEED = 1', first.command)
    self.assertIn(
        f"--gin_param=INIT_FROM_RUN = '{self.root}/seed_2'", second.command
    )

  def test_a_further_test_part_is_decoded_where_it_has_shards(self):
    self.finish('seed', 1, 2)
    data_dir = self.path('data')
    self.folders = self.folders._replace(data_dir=data_dir)
    study = tiny.study(tiny.SEED_ROW)
    self.assertEqual(self.names(study), [])
    os.makedirs(os.path.join(data_dir, 'train.official'))
    (job,) = jobs.missing(study, folders=self.folders)
    self.assertEqual(job.name, 'evaluate_x_0_official')
    self.assertContainsSubset(
        [
            f"--gin_param=TEST_DIR = '{data_dir}/train.official'",
            "--gin_param=OUTPUT_NAME = 'official.json'",
        ],
        job.command,
    )

  def test_a_model_may_have_its_own_shards_and_evaluation(self):
    model = design.Model(
        evaluation='an4_whisper_evaluate', shards='whisper.{}'
    )
    recipe = tiny.SEED.but('seed', model=model)
    study = tiny.study(design.Row('seed', recipe, seeds=(None,)))
    (job,) = jobs.missing(study, folders=self.folders)
    self.assertIn("--gin_param=TRAIN_DIR = 'data/whisper.public'", job.command)
    self.finish('seed')
    (job,) = jobs.missing(study, folders=self.folders)
    self.assertContainsSubset(
        [
            '--gin_file=gin/experiments/an4_whisper_evaluate.gin',
            "--gin_param=TEST_DIR = 'data/whisper.test'",
        ],
        job.command,
    )

  def test_models_are_decoded_when_a_study_is_trained_each_once(self):
    conv = design.Model(gin_files=('gin/models/conv.gin',))
    other = tiny.FEDERATED.but('other', model=conv)
    study = tiny.study(tiny.SEED_ROW, tiny.row('other', other, seeds=(1,)))
    self.finish('seed')
    self.assertEqual(self.names(study), ['other_1'])
    self.finish('other_1')
    self.assertEqual(self.names(study), ['evaluate_x_0', 'evaluate_x_1'])
    self.finish('seed', 1, 2)
    (job,) = jobs.missing(study, folders=self.folders)
    self.assertEqual(job.name, 'evaluate_x_1')
    self.assertIn('--gin_file=gin/models/conv.gin', job.command)
    runs = [self.path('other_1')]
    self.assertIn(f'--gin_param=RUNS = {runs}', job.command)
    self.finish('other_1', 1, 2)
    self.assertEqual(self.names(study), [])

  def test_models_are_decoded_again_with_a_language_model(self):
    study = tiny.study(tiny.SEED_ROW)
    self.finish('seed', 1, 2)
    self.assertEqual(self.names(study), [])
    path = pathlib.Path(self.path('words.arpa'))
    path.write_text('words')
    self.folders = self.folders._replace(language_model=str(path))
    (job,) = jobs.missing(study, folders=self.folders)
    self.assertIn(f'--gin_param=LANGUAGE_MODEL = {str(path)!r}', job.command)
    self.assertTrue(any('DEV_DIR' in each for each in job.command))
    # Of another model.
    self.finish('seed', 1, 2, errors_with_lm={'a': (1, 10)})
    self.assertEqual(self.names(study), ['evaluate_x_0'])
    digest = hashlib.sha256(b'words').hexdigest()
    test = pathlib.Path(self.path('seed'), 'test.json')
    test.write_text(test.read_text().replace('0123456789', digest))
    self.assertEqual(self.names(study), [])

  def test_features_and_a_language_model_are_made_first(self):
    model = design.Model(shards='whisper/{}', pretrained='whisper-tiny.en')
    suite = dataclasses.replace(self.folders.suite, language_model='words.arpa')
    self.folders = self.folders._replace(
        data_dir=self.path('data'), suite=suite
    )
    study = tiny.study(
        dataclasses.replace(
            tiny.SEED_ROW, recipe=tiny.SEED.but('head', model=model)
        )
    )
    # Those that it is trained and decoded on.
    parts = ('public', 'dev', 'test')
    self.assertEqual(
        self.names(study),
        [*(f'features_{part}' for part in parts), 'language_model'],
    )
    job, *_ = jobs.missing(study, folders=self.folders)
    self.assertIn(
        f'--features_dir={self.folders.shards("public", model)}', job.command
    )
    self.assertIn(f'--audio_dir={self.folders.shards("public")}', job.command)
    for part in parts:
      os.makedirs(self.folders.shards(part, model))
    self.assertEqual(self.names(study), ['language_model'])
    federated = tiny.row(
        recipe=tiny.FEDERATED.but('x', model=model, parent=study.rows[0].recipe)
    )
    self.assertEqual(
        self.names(tiny.study(federated)),
        ['features_private', 'language_model'],
    )
    speeds = tiny.row(
        recipe=tiny.SEED.but('x', model=model, speeds=(0.9, 1.0))
    )
    job, _ = jobs.missing(tiny.study(speeds), folders=self.folders)
    self.assertContainsSubset(
        [
            f'--audio_dir={self.folders.shards("public")}',
            f'--features_dir={self.path("data/whisper/public_speeds")}',
            '--speeds=0.9,1.0',
        ],
        job.command,
    )
    pathlib.Path(self.folders.data_dir, 'words.arpa').touch()
    self.assertEqual(self.names(study), ['head'])

  def test_a_command_has_files_settings_and_folders(self):
    self.finish('seed')
    recipe = tiny.FEDERATED.but(
        'few', {'COHORT_SIZE': 2}, gin_files=('gin/optimizers/sgd.gin',)
    )
    study = tiny.study(tiny.row(recipe=recipe, seeds=(3, 4)))
    first, _ = jobs.missing(study, folders=self.folders)
    self.assertEqual(first.name, 'few_3')
    self.assertTrue(os.path.exists(first.command[0]))
    self.assertEqual(
        first.command[1:],
        (
            f'--output_dir={self.root}/few_3',
            '--gin_file=gin/experiments/an4_federated.gin',
            '--gin_file=gin/optimizers/sgd.gin',
            '--gin_param=COHORT_SIZE = 2',
            '--gin_param=SEED = 3',
            "--gin_param=PRIVATE_DIR = 'data/train.private'",
            "--gin_param=DEV_DIR = 'data/train.dev'",
            f"--gin_param=INIT_FROM_RUN = '{self.root}/seed'",
        ),
    )

  def test_a_run_with_other_settings_is_refused(self):
    self.finish('seed')
    self.finish('federated_1', settings={'COHORT_SIZE': '4'})
    recipe = tiny.FEDERATED.but('federated', {'COHORT_SIZE': 8})
    with self.assertRaisesRegex(
        ValueError, 'federated_1 was run with COHORT_SIZE = 4, which is 8 now'
    ):
      self.names(tiny.study(tiny.row(recipe=recipe)))


class RunAllTest(tiny.TestCase):
  """Jobs that are small programs of Python's own library."""

  def job(self, name: str, code: str) -> jobs.Job:
    """Runs code, with its working folder's names in ROOT."""
    code = code.replace('ROOT', repr(self.root))
    return jobs.Job(name, ('-S', '-c', code))

  def read(self, path: str) -> str:
    with open(path, encoding='utf-8') as f:
      return f.read()

  def run_all(self, *some: jobs.Job, num_at_once: int = 1) -> set[str]:
    return jobs.run_all(some, folders=self.folders, num_at_once=num_at_once)

  def test_failed_jobs_are_reported_and_the_others_run(self):
    bad = self.job('bad', "raise SystemExit('no')")
    good = self.job('good', 'print(1)')
    self.assertEqual(self.run_all(bad, good), {'bad'})
    self.assertEqual(self.run_all(good), set())
    self.assertEqual(self.read(self.folders.log('bad')), 'no\n')
    # Logs go on.
    self.assertEqual(self.read(self.folders.log('good')), '1\n1\n')

  def test_processors_are_divided_among_jobs_at_a_time(self):
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
      self.skipTest('needs two processors')
    # Each waits for the other, so both run at once.
    code = (
        'import os, time\n'
        "open(ROOT + '/NAME', 'w').write(repr(os.sched_getaffinity(0)))\n"
        "while not os.path.exists(ROOT + '/OTHER'): time.sleep(0.01)\n"
    )
    a = self.job('a', code.replace('NAME', 'a').replace('OTHER', 'b'))
    b = self.job('b', code.replace('NAME', 'b').replace('OTHER', 'a'))
    self.assertEqual(self.run_all(a, b, num_at_once=2), set())
    first, second = (
        eval(self.read(self.path(name)))  # pylint: disable=eval-used
        for name in 'ab'
    )
    self.assertEqual(first | second, everything)
    self.assertEqual(first & second, set())

  def test_an_interrupt_ends_what_runs_and_begins_nothing(self):
    # Says when it is asked to end, as the programs that save their state.
    ready, saved = self.path('ready'), self.path('saved')
    long = self.job(
        'long',
        'import signal, sys, time\n'
        'def end(*_):\n'
        "  open(ROOT + '/saved', 'w').close()\n"
        '  sys.exit(143)\n'
        'signal.signal(signal.SIGTERM, end)\n'
        "open(ROOT + '/ready', 'w').close()\n"
        'time.sleep(60)\n',
    )

    def interrupt():
      while not os.path.exists(ready):
        time.sleep(0.01)
      os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with self.assertRaises(KeyboardInterrupt):
      self.run_all(long, self.job('next', 'print(1)'))
    thread.join()
    self.assertTrue(os.path.exists(saved))
    self.assertFalse(os.path.exists(self.folders.log('next')))
