r"""Prints what folders of shards contain: speakers, hours, problems, padding.

Example:
  python bin/inspect_data.py --data=quickstart_data/shards --padding \
      --histogram=speakers.png
  python bin/inspect_data.py --data=quickstart_data/shards/dev --client=1003
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

from tff_asr.programs import inspection

_DATA = flags.DEFINE_list(
    'data', None, 'Folders of shards, or folders that hold some. Required.'
)
_CLIENT = flags.DEFINE_string('client', None, 'Print the records of a client.')
_HISTOGRAM = flags.DEFINE_string(
    'histogram', None, 'PNG to draw: minutes of audio a client.'
)
_PADDING = flags.DEFINE_bool(
    'padding', False, 'Measure the share of padding in training batches.'
)
_MAX_BATCH_SEC = flags.DEFINE_float(
    'max_batch_sec',
    120.0,
    'For --padding: padded audio of a batch, in seconds.',
    lower_bound=0.1,
)
_MAX_PADDING = flags.DEFINE_float(
    'max_padding',
    0.15,
    'For --padding: share of padding in a batch.',
    lower_bound=0,
    upper_bound=1,
)
_VERIFY = flags.DEFINE_bool(
    'verify', False, 'Read all shards and check their checksums.'
)
flags.mark_flag_as_required('data')


def main(_) -> None:
  folders = inspection.find_folders(_DATA.value)
  print(inspection.describe(folders, is_verified=_VERIFY.value))
  for folder in folders if _PADDING.value else ():
    limits = dict(
        max_batch_sec=_MAX_BATCH_SEC.value, max_padding=_MAX_PADDING.value
    )
    print(inspection.padding(folder, **limits))
  for folder in folders if _CLIENT.value else ():
    print(inspection.describe_client(folder, _CLIENT.value))
  if _HISTOGRAM.value:
    # Late: it takes a second to load.
    from tff_asr.reports import plots  # pylint: disable=g-import-not-at-top

    plots.save(plots.audio_by_client(folders), _HISTOGRAM.value)


if __name__ == '__main__':
  launch.run(main)
