"""Flags that choose a configuration, shared by the programs that bind one."""

from absl import flags

from tff_asr import config

_GIN_FILE = flags.DEFINE_multi_string(
    'gin_file', [], 'Configuration file; later ones win. Required.'
)
_GIN_PARAM = flags.DEFINE_multi_string(
    'gin_param', [], "Override such as 'SEED = 2'."
)
_PRETRAINED = flags.DEFINE_string(
    'pretrained',
    None,
    'Name or folder of a public model; sets PRETRAINED of the configuration.',
)


def from_flags() -> dict[str, list[str]]:
  """Returns the arguments of `config.bind` that the flags choose.

  Raises:
    config.ConfigError: --pretrained is given, and no file has a public model.
  """
  gin_files = _GIN_FILE.value
  return dict(
      gin_files=gin_files,
      gin_params=_GIN_PARAM.value
      + config.public_model_params(gin_files, _PRETRAINED.value),
  )
