"""Simulated rounds take what their parts cost, and sum each client once."""

import dataclasses
from unittest import mock

from absl.testing import absltest

from benchmarks import scaling
from tff_asr.execution import scheduler

_COSTS = scaling.Costs(
    train_sec=10.0,
    spread=0.0,
    model_bytes=100.0,
    sum_bytes=200.0,
    sent_bytes=100.0,
    copy_bytes_sec=100.0,
    reduce_bytes_sec=400.0,
    link_bytes_sec=50.0,
    task_sec=0.0,
    noise_sec=0.0,
    server_sec=3.0,
    broadcast_parts=1,
    longest_first=False,
    gpus_per_machine=2,
    gpus_per_worker=2,
)


class ScalingTest(absltest.TestCase):

  def _end(self, *args, costs=_COSTS, **options):
    found = scaling.simulate(*args, costs, **options)
    self.assertEqual(found.num_clients, args[0])
    return found

  def test_rounds_by_hand(self):
    # Copy of the model 1, six clients 60, reduction 1, copy of the sum 1, the
    # server adds one sum 2, its step 3.
    self.assertEqual(self._end(6, 1).end_sec, 68.0)
    # On two machines: the model crosses the link once, 2, copy 1; two clients
    # a GPU, 20; reduction 1, copy 1. Then the GPUs of the second machine fetch
    # half of the other's sum each, 1, one after the other, and add their own
    # meanwhile; they add the half, 1, copy the result, .5, and send it, 1,
    # again one after the other. The server makes it int64, 1.
    with mock.patch.object(scheduler, '_NUM_PARTS', 2):
      found = self._end(8, 4)
    self.assertEqual(found.started_sec, 3.0)
    self.assertEqual(found.trained_sec, 23.0)
    self.assertEqual(found.merged_sec, 30.5)
    self.assertEqual(found.end_sec, 33.5)
    self.assertEqual(found.store_bytes, 300.0)

  def test_workers_of_one_machine_add_a_part_each(self):
    # Two workers copy their sums, 1; the server adds two halves of each, 2,
    # both at once.
    costs = dataclasses.replace(_COSTS, gpus_per_worker=1)
    self.assertEqual(self._end(6, 2, costs=costs).merged_sec, 34.0)

  def test_machines_hand_the_model_on(self):
    # In one part all three others ask the server at once; its link is free for
    # each in turn.
    self.assertEqual(self._end(16, 8).started_sec, 7.0)
    # In parts they find some at each other, but none before the server has sent
    # all of the model once.
    costs = dataclasses.replace(_COSTS, broadcast_parts=50)
    self.assertBetween(self._end(16, 8, costs=costs).started_sec, 3.0, 6.0)

  def test_the_server_waits_for_its_noise(self):
    late = dataclasses.replace(_COSTS, noise_sec=100.0)
    self.assertEqual(self._end(6, 1, costs=late).end_sec, 103.0)

  def test_longest_clients_first(self):
    # Of two GPUs each has five clients of 8 to 12 s. In any order one may begin
    # a client last that takes 12; in this one none that takes more than 10.
    costs = dataclasses.replace(_COSTS, spread=0.2)
    first = dataclasses.replace(costs, longest_first=True)
    self.assertLess(
        self._end(10, 2, costs=first).trained_sec,
        self._end(10, 2, costs=costs).trained_sec,
    )

  def test_a_slow_gpu_takes_fewer_clients(self):
    # One of two is slow: 6 clients take 40 s, not 60.
    found = self._end(6, 2, slow_every=2)
    self.assertEqual(found.trained_sec, 41.0)

  def test_a_lost_worker_s_clients_run_again(self):
    # After 20 s all four GPUs have had two clients each of 16; then two go on
    # with 12: the lost sum's four and the eight that were left. The server's
    # machine begins after 1 s.
    found = self._end(16, 4, is_one_lost=True)
    self.assertEqual(found.trained_sec, 81.0)
