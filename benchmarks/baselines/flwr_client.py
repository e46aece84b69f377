"""The client of `flwr_round`, as in Flower's PyTorch quickstart.

It builds the model, loads the sent weights, trains and replies with all
weights. Data are read once by each process that runs clients.
"""

import functools

from flwr import app as flwr_app
from flwr import clientapp
import numpy as np
import torch

from benchmarks.baselines import job as job_lib
from benchmarks.baselines import torch_model

app = clientapp.ClientApp()


@app.train()
def train(
    message: flwr_app.Message, context: flwr_app.Context
) -> flwr_app.Message:
  """One client's local steps.

  Args:
    message: Message of the server: `arrays`, and `config` with the folder of
      the job and num_threads for PyTorch.
    context: Has the client's number.

  Returns:
    The weights after the steps.
  """
  config = message.content['config']
  torch.set_num_threads(config['num_threads'])
  job = job_lib.load(config['job'])
  model = torch_model.CtcTransformer(job)
  model.load_state_dict(message.content['arrays'].to_torch_state_dict())
  optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
  for batch in _batches(config['job'], context.node_config['partition-id']):
    optimizer.zero_grad()
    model.loss(*batch).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), job.max_grad_norm)
    optimizer.step()
  content = flwr_app.RecordDict({
      'arrays': flwr_app.ArrayRecord(model.state_dict()),
      'metrics': flwr_app.MetricRecord({'num-examples': job.num_utterances}),
  })
  return flwr_app.Message(content=content, reply_to=message)


@functools.lru_cache
def _batches(folder: str, client: int) -> list[tuple[torch.Tensor, ...]]:
  """A client's batches: waveforms and labels."""
  job = job_lib.load(folder)
  clients = job_lib.load_clients(folder)
  waveforms = torch.from_numpy(clients.waveforms[client])
  labels = torch.from_numpy(clients.labels[client].astype(np.int64))
  return list(
      zip(
          torch.split(waveforms, job.batch_size),
          torch.split(labels, job.batch_size),
      )
  )
