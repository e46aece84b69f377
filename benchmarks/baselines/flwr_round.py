"""Rounds of Flower's simulation with a PyTorch client.

`FedAvg` under `DifferentialPrivacyServerSideFixedClipping`, and the `ClientApp`
of `flwr_client`. A program of the drivers; see `rounds`.
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

import os

from absl import flags
from flwr import app as flwr_app
from flwr import serverapp
from flwr import simulation
from flwr.serverapp import strategy as strategy_lib

from benchmarks.baselines import flwr_client
from benchmarks.baselines import job as job_lib
from benchmarks.baselines import program
from benchmarks.baselines import torch_model

_AT_ONCE = flags.DEFINE_integer(
    'at_once', 1, 'Clients that train at the same time.', lower_bound=1
)


def main(_) -> None:
  job = job_lib.load(program.JOB.value)
  num_threads = max(1, len(os.sched_getaffinity(0)) // _AT_ONCE.value)
  simulation.run_simulation(
      server_app=_build_server(job, num_threads=num_threads),
      client_app=flwr_client.app,
      num_supernodes=job.num_clients,
      backend_config={
          'init_args': {
              # Not one that another program has left behind.
              'address': 'local',
              'num_cpus': num_threads * _AT_ONCE.value,
          },
          'client_resources': {'num_cpus': num_threads, 'num_gpus': 0.0},
      },
  )


def _build_server(
    job: job_lib.Job, *, num_threads: int
) -> serverapp.ServerApp:
  """Federated averaging that reports the time of each round."""
  server = serverapp.ServerApp()
  initial = torch_model.CtcTransformer(job)
  torch_model.load(initial, job_lib.load_arrays(program.JOB.value, 'weights'))
  clock = program.RoundClock()

  def after_round(round_num: int, arrays: flwr_app.ArrayRecord) -> None:
    def export():
      model = torch_model.CtcTransformer(job)
      model.load_state_dict(arrays.to_torch_state_dict())
      return torch_model.export(model)

    if round_num:
      clock.end(export)
    else:
      clock.start()

  @server.main()
  def run(grid: serverapp.Grid, _: flwr_app.Context) -> None:
    strategy = strategy_lib.DifferentialPrivacyServerSideFixedClipping(
        strategy_lib.FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=job.num_clients,
            min_available_nodes=job.num_clients,
        ),
        noise_multiplier=job.noise_multiplier,
        clipping_norm=job.l2_norm_clip,
        num_sampled_clients=job.num_clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=flwr_app.ArrayRecord(initial.state_dict()),
        num_rounds=program.WARM_UPS.value + program.COUNT.value,
        train_config=flwr_app.ConfigRecord(
            {'job': program.JOB.value, 'num_threads': num_threads}
        ),
        evaluate_fn=after_round,
    )

  return server


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')
