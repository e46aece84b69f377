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


def published_model() -> str:
  """Returns --pretrained, for a program that takes the model as it is.

  Raises:
    ValueError: It is not given, or a configuration is.
  """
  if _PRETRAINED.value is None or _GIN_FILE.value or _GIN_PARAM.value:
    raise ValueError(
        '--data evaluates a model as it was published: give --pretrained, and '
        'no --gin_file and --gin_param.'
    )
  return _PRETRAINED.value
