r"""Erases the keys and unreleased noise of a run that will not be resumed.

A run erases its secrets.safetensors when it ends. A run that was interrupted or
killed keeps the file, to resume with the same bits. With correlated noise the
file is as sensitive as the clients' updates, from the first round on. This
command overwrites and removes it, and keeps everything else: ledger, states,
model and privacy report. A run in progress is refused; a run without the file
is left as it is. If the run is resumed nevertheless, it continues under new
keys.

Example:
  python bin/erase_secrets.py --run=runs/private
"""

from tff_asr import launch

launch.install_early_sigint(__name__)

from absl import flags

from tff_asr.storage import run_dir

_RUN = flags.DEFINE_string('run', None, 'Folder of the run. Required.')
flags.mark_flag_as_required('run')


def main(_) -> None:
  print(run_dir.erase_secrets(_RUN.value))


if __name__ == '__main__':
  launch.run(main, after_interrupt='the same command starts again.')
