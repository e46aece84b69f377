"""Tests for update_signal."""

import dataclasses
import functools
import math
import os
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import cases
from tests import fakes
from tests.learning import tiny
from tff_asr.aggregators import dp_mean
from tff_asr.data import client_data as client_data_lib
from tff_asr.learning import client_update
from tff_asr.models import weights as weights_lib
from tff_asr.privacy import adaptive_query
from tff_asr.privacy import clipping
from tff_asr.privacy import planning
from tff_asr.privacy import queries
from tff_asr.programs import update_signal


class UpdateSignalTest(cases.TestCase):

  def setUp(self):
    super().setUp()
    self.model = tiny.recognizer()
    self.update = update_signal.one_step(
        self.model, fakes.tiny_pipeline(self.model)
    )
    self.weights = self.model.initialize(tf.constant([3, 4]))

  def people(self, **people):
    people = people or dict(ann=2, bob=2, cai=2)
    folder = self.path('_'.join(f'{k}{v}' for k, v in people.items()))
    if not os.path.exists(folder):
      fakes.write_split(folder, people)
    return client_data_lib.load(folder)

  def measure(self, update=None, **people):
    return update_signal.measure(
        update or self.update,
        weights=self.weights,
        client_data=self.people(**people),
    )

  def gradient(self, data, client_id, numbers):
    """The mean gradient of some utterances, each computed alone, by layer."""
    total = {name: 0.0 for name in self.model.specs}
    for number in numbers:
      examples = data.create_tf_dataset_for_client(client_id)
      (batch,) = self.update.pipeline.evaluation_batches(
          examples.skip(number).take(1)
      )
      gradients, _ = client_update.loss_gradients(
          self.model, self.weights, batch, num_utterances=tf.constant(1.0)
      )
      for name, value in gradients.items():
        total[name] += value.numpy().ravel() / len(numbers)
    return total

  def clipped(self, *arguments):
    """The update over C: it is far above it, so each layer has its own norm."""
    gradient = self.gradient(*arguments)
    size = sum(map(len, gradient.values()))
    return np.concatenate([
        value / np.linalg.norm(value) * math.sqrt(len(value) / size)
        for _, value in sorted(gradient.items())
    ])

  def test_signal_is_as_numpy_computes_it(self):
    names = ('ann', 'bob', 'cai')
    data = self.people(**{name: 2 for name in names})
    signal = update_signal.measure(
        self.update, weights=self.weights, client_data=data
    )
    self.assertEqual(
        [(each.num_utterances, each.num_people) for each in signal.measured],
        [(1, 3), (2, 3)],
    )
    for found, updates in zip(
        signal.measured,
        (
            # One at a time: the mean of both updates.
            [
                (self.clipped(data, name, [0]) + self.clipped(data, name, [1]))
                / 2
                for name in names
            ],
            # Both in one step.
            [self.clipped(data, name, [0, 1]) for name in names],
        ),
    ):
      x, y, z = updates
      products = np.array([x @ y, y @ z, x @ z])
      self.assertAlmostEqual(found.square, np.mean(products), places=4)
      # Without one of three, the estimate is the product of the others.
      self.assertAlmostEqual(
          found.error, math.sqrt(2 * np.var(products)), places=4
      )
      self.assertGreater(found.client_sec, 0)
      self.assertAlmostEqual(np.linalg.norm(x), 1.0, delta=0.3)
    one, two = signal.measured
    self.assertGreater(abs(one.square - two.square), 1e-3)

  def test_people_with_fewer_utterances_are_left_out_of_larger_counts(self):
    signal = self.measure(ann=4, bob=5, cai=2, dee=1)
    # Of less than eight people, all must have the largest count.
    self.assertEqual(
        [(each.num_utterances, each.num_people) for each in signal.measured],
        [(1, 4)],
    )
    with mock.patch.object(update_signal, '_FEWEST_PEOPLE', 2):
      signal = self.measure(ann=4, bob=5, cai=2, dee=1)
    self.assertEqual(
        [(each.num_utterances, each.num_people) for each in signal.measured],
        [(1, 4), (2, 3), (4, 2)],
    )
    table = signal.table()
    self.assertLen(table, 4)
    self.assertEqual(table[3][:2], ['4', '2'])

  def test_the_clip_and_the_local_steps_are_those_of_the_run(self):
    whole = self.measure(ann=2, bob=2, cai=2)
    query = functools.partial(
        queries.PerLayerClipSumQuery, l2_norm_clip=0.5, noise_multiplier=1.0
    )
    adaptive = functools.partial(
        adaptive_query.AdaptiveClipSumQuery,
        l2_norm_clip=0.01,
        noise_multiplier=1.0,
        cohort_size=1,
        clipping=clipping.Clipping(split='dim'),
    )
    replaced = lambda build_query: dataclasses.replace(
        self.update,
        aggregator=dp_mean.build(build_query=build_query, cohort_size=1),
    )
    squares = lambda signal: [each.square for each in signal.measured]
    # One clip over all layers gives another mean.
    of_global = self.measure(replaced(query))
    self.assertGreater(
        abs(of_global.measured[0].square - whole.measured[0].square), 1e-3
    )
    # A first round of adaptive clips is a round of fixed ones, on the grid.
    np.testing.assert_allclose(
        squares(self.measure(replaced(adaptive))), squares(whole), atol=1e-4
    )
    # A clip of a thousand times the update leaves a thousandth of it.
    loose = functools.partial(query, l2_norm_clip=1e3)
    self.assertBetween(squares(self.measure(replaced(loose)))[0], 0, 1e-5)
    frozen = dataclasses.replace(self.update, frozen=('front/.*',))
    self.assertEqual(
        weights_lib.num_parameters(self.update.trained)
        - weights_lib.num_parameters(frozen.trained),
        80 * 4 * 8 + 8,
    )
    self.assertNotAlmostEqual(
        self.measure(frozen).measured[0].square, whole.measured[0].square
    )

  def test_speed_grows_with_utterances_only_beyond_what_was_measured(self):
    measured = [
        update_signal.Measured(count, 8, 0.01, 0.001, sec)
        for count, sec in ((1, 0.1), (2, 0.1), (4, 0.2))
    ]
    signal = update_signal.Signal(
        tuple(measured), planning.SignalLaw(0.1, 0.1)
    )
    # Between, by lines; 8 utterances take twice the time of 4.
    for count, seconds in ((1, 0.1), (2, 0.1), (3, 0.15), (4, 0.2), (8, 0.4)):
      self.assertAlmostEqual(signal.clients_per_sec(count), 1 / seconds)

  def test_what_cannot_be_measured_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'has 1 speakers'):
      self.measure(ann=2)
    unclipped = dataclasses.replace(
        self.update, aggregator=tff.aggregators.UnweightedMeanFactory()
    )
    with self.assertRaisesRegex(ValueError, 'against a clip'):
      self.measure(unclipped)
