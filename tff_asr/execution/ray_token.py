"""Token of a Ray cluster: who has none can run no code there.

A Ray cluster runs whatever reaches its ports, for any user of the machine. With
a token (https://docs.ray.io/en/latest/ray-security/auth.html) its processes
refuse all calls without it. Ray reads the mode when it is imported, so that
`prepare` comes first. The token is in the environment, which other users cannot
read, and not on a command line. It is no encryption: on a network, others who
can listen see it.
"""

import os
import secrets
import sys

from absl import logging

_MODE = 'RAY_AUTH_MODE'
_TOKEN = 'RAY_AUTH_TOKEN'


def prepare(address: str | None) -> None:
  """Has Ray ask for a token; what the user has set stays.

  Args:
    address: Address of the cluster to join; None: one will be started here, and
      gets a token of its own.

  Raises:
    ValueError: Nothing says how to join the cluster, or Ray is imported
      already, without a token.
  """
  mode = os.environ.get(_MODE)
  if mode is not None:
    if address is not None and mode == 'disabled':
      logging.warning(
          'The Ray cluster at %s asks for no token: whoever reaches it can run '
          'code here and see what clients say.', address
      )
    return
  ray = sys.modules.get('ray')
  if ray is not None:
    if ray.is_initialized():
      return  # The user has connected it.
    raise ValueError(
        f'Ray was imported before it got a token: set {_MODE}=token and '
        f'{_TOKEN}, or import Ray later than a context is built.'
    )
  if address is not None:
    raise ValueError(
        f'the Ray cluster at {address} would run the code of whoever reaches '
        f'it: start it with {_MODE}=token and {_TOKEN}=SECRET, and set both '
        f'here. {_MODE}=disabled joins one without a token.'
    )
  os.environ[_MODE] = 'token'
  os.environ[_TOKEN] = secrets.token_hex(32)
