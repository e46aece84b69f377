r"""Prints epsilon from noise, rounds and sampling, or finds one of them.

Give --cohort_size, --population and two of noise, --target_epsilon and
--rounds: the third is found. Or --run: the rounds that a run's ledger charges.

Examples:
  python bin/compute_epsilon.py --sigma_mean=3e-6 --cohort_size=1024 \
      --population=34753 --rounds=2006 --delta=1e-9 \
      --extrapolate_cohorts=204800 --plot=epsilon.png
  python bin/compute_epsilon.py --run=runs/private --format=json
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

from tff_asr.privacy import accounting
from tff_asr.privacy import privacy_report

_NOISE_MULTIPLIER = flags.DEFINE_float(
    'noise_multiplier', None, 'Noise on the sum of updates, over the clip.'
)
_SIGMA_MEAN = flags.DEFINE_float(
    'sigma_mean', None, 'Noise on the mean: noise_multiplier / cohort_size.'
)
_TARGET_EPSILON = flags.DEFINE_float('target_epsilon', None, 'Epsilon at most.')
_COHORT_SIZE = flags.DEFINE_integer('cohort_size', None, 'Clients a round.')
_POPULATION = flags.DEFINE_integer('population', None, 'All private clients.')
_ROUNDS = flags.DEFINE_integer('rounds', None, 'Number of rounds.')
_DELTA = flags.DEFINE_float(
    'delta', None, "By default the run's own, or 1 / (10 population)."
)
_SAMPLING = flags.DEFINE_enum(
    'sampling', 'poisson', ['poisson', 'fixed_size', 'full'], 'Full: everyone.'
)
_ACCOUNTANT = flags.DEFINE_enum(
    'accountant', None, accounting.ACCOUNTANTS, 'Else both; of plots, rdp.'
)
_FORMAT = flags.DEFINE_enum('format', 'text', ['text', 'json'], 'Output.')
_RUN = flags.DEFINE_string('run', None, 'Folder of a run, for its ledger.')
_COHORTS = flags.DEFINE_list(
    'extrapolate_cohorts', [], 'Larger cohorts at the same noise on the mean.'
)
_POPULATIONS = flags.DEFINE_list(
    'extrapolate_populations', [], 'By default in proportion to the cohort.'
)
_PLOT = flags.DEFINE_string('plot', None, 'PNG of epsilon by population.')
for name in 'cohort_size population rounds noise_multiplier sigma_mean'.split():
  flags.mark_flags_as_mutual_exclusive(['run', name])
flags.mark_flags_as_mutual_exclusive(['run', 'target_epsilon'])
flags.mark_flags_as_mutual_exclusive(['noise_multiplier', 'sigma_mean'])


def main(_) -> None:
  is_grown = _COHORTS.value or _POPULATIONS.value or _PLOT.value
  if _RUN.value:
    if flags.FLAGS['sampling'].present:
      raise ValueError('leave --sampling out: the ledger of --run says it.')
    # Late: TensorFlow takes seconds to load.
    from tff_asr.storage import run_dir  # pylint: disable=g-import-not-at-top

    given = _DELTA.value
    report = privacy_report.of_ledger(
        run_dir.read_ledger(_RUN.value), accountant=_ACCOUNTANT.value,
        delta=run_dir.read_delta(_RUN.value) if given is None else given,
    )
  else:
    noise_multiplier = _NOISE_MULTIPLIER.value
    if _SIGMA_MEAN.value is not None:
      # A mean is a sum over the cohort size, and so is its noise.
      noise_multiplier = _SIGMA_MEAN.value * (_COHORT_SIZE.value or 0)
    report = privacy_report.plan(
        noise_multiplier=noise_multiplier,
        target_epsilon=_TARGET_EPSILON.value, rounds=_ROUNDS.value,
        cohort_size=_COHORT_SIZE.value, population=_POPULATION.value,
        sampling=_SAMPLING.value, delta=_DELTA.value,
        accountant=_ACCOUNTANT.value or ('rdp' if is_grown else None),
    )
  reports = [report, *privacy_report.extrapolate(
      report,
      cohort_sizes=[int(each) for each in _COHORTS.value],
      populations=[int(each) for each in _POPULATIONS.value],
  )]
  if _FORMAT.value == 'json':
    print(privacy_report.to_json(reports))
  elif len(reports) > 1:
    print(privacy_report.plan_table(reports))
  else:
    print(report)
  if _PLOT.value:
    from tff_asr.reports import plots  # pylint: disable=g-import-not-at-top

    plots.save(plots.epsilon_by_population(reports), _PLOT.value)


if __name__ == '__main__':
  launch.run(main)
