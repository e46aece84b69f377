"""Weights of clients where a round is a mean over processes of their means.

The published code of https://arxiv.org/abs/2310.00098 runs a process on each
GPU. A process averages the deltas of its clients, and the round's delta is the
mean of these means (`Server.step`). In runs of passes the clients, largest
first, go to the process with the fewest utterances so far
(`create_dataset_fl`). So a large client may be the only one of its process, and
then has the weight of several others.
"""

from collections.abc import Sequence

import numpy as np

from tff_asr import checks


def client_weights(
    sizes: Sequence[int], *, num_processes: int
) -> list[float]:
  """Returns each client's weight in the sum over a cohort, relative to 1 / S.

      >>> client_weights([2, 9, 3, 2], num_processes=2)
      [0.6666666666666666, 2.0, 0.6666666666666666, 0.6666666666666666]

  Args:
    sizes: Utterances of each of the S clients.
    num_processes: P.

  Returns:
    S / (P n) for a client of a process with n clients: on average 1. Only
    processes with a client count.
  """
  checks.positive_int(num_processes=num_processes)
  loads = np.zeros(num_processes, np.int64)
  members = [[] for _ in loads]
  for client in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
    process = int(np.argmin(loads))
    loads[process] += sizes[client]
    members[process].append(client)
  weights = [0.0] * len(sizes)
  members = [clients for clients in members if clients]
  for clients in members:
    for client in clients:
      weights[client] = len(sizes) / (len(members) * len(clients))
  return weights
