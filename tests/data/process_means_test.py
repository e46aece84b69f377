"""Weights of clients in means of processes' means."""

from absl.testing import absltest
import numpy as np

from tff_asr.data import process_means


class ProcessMeansTest(absltest.TestCase):

  def test_weights_by_hand(self):
    # Largest first: 9 to process 0; 4, 3 and then 1 to process 1 (0, 4, 7 are
    # fewer than 9); 2 to process 1 (8), and the last 2 to process 0 (9 < 10).
    weights = process_means.client_weights([3, 9, 2, 4, 1, 2], num_processes=2)
    # Sizes in order: 9, 4, 3, 2, 2, 1. Loads: 9 0, 9 4, 9 7, 9 9, 11 9, 11 10.
    # Process 0: 9 and the second 2. Process 1: 4, 3, the first 2, 1.
    self.assertEqual(weights, [0.75, 1.5, 0.75, 0.75, 0.75, 1.5])

  def test_one_process_and_a_process_a_client_weigh_all_alike(self):
    for num_processes in (1, 4, 9):
      self.assertEqual(
          process_means.client_weights(
              [5, 1, 7, 2], num_processes=num_processes
          ),
          [1.0] * 4,
      )
    self.assertEqual(process_means.client_weights([], num_processes=2), [])

  def test_the_weighted_mean_is_the_mean_of_the_means(self):
    rng = np.random.default_rng(1)
    for _ in range(50):
      sizes = rng.integers(1, 1000, size=rng.integers(1, 64)).tolist()
      num_processes = int(rng.integers(1, 5))
      weights = process_means.client_weights(
          sizes, num_processes=num_processes
      )
      self.assertAlmostEqual(np.mean(weights), 1)
      # Twin: lists of (load, members), the least loaded takes the next.
      processes = [[0, []] for _ in range(num_processes)]
      for client in np.argsort(-np.array(sizes), kind='stable'):
        least = min(processes, key=lambda process: process[0])
        least[0] += sizes[client]
        least[1].append(client)
      deltas = rng.normal(size=len(sizes))
      means = [
          np.mean(deltas[members]) for _, members in processes if members
      ]
      self.assertAlmostEqual(np.mean(weights * deltas), np.mean(means))

  def test_a_large_client_weighs_more_as_the_authors_code_does(self):
    # Eight clients of LibriSpeech-like sizes, one of which has most speech.
    weights = process_means.client_weights(
        [700, 120, 110, 100, 90, 80, 70, 60], num_processes=2
    )
    self.assertAlmostEqual(weights[0], 4.0)
    self.assertAlmostEqual(weights[1], 4 / 7)


if __name__ == '__main__':
  absltest.main()
