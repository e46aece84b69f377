"""Token of a Ray cluster: who has none can run no code there.

A Ray cluster runs whatever reaches its ports, for any user of the machine. With
a token (https://docs.ray.io/en/latest/ray-security/auth.html) its processes
refuse all calls without it. Ray reads the mode when it is imported, so that
`prepare` comes first. The token is in the environment, which other users cannot
read, and not on a command line. It is no encryption: on a network, others who
can listen see it. So a cluster of this machine alone listens on the loopback
address only, which Ray decides when it is imported, too.
"""

import os
import secrets
import sys

from absl import logging

_MODE = 'RAY_AUTH_MODE'
_TOKEN = 'RAY_AUTH_TOKEN'
# Ray replaces the address 127.0.0.1 by the machine's own if clusters of several
# machines are possible, as they are by default on Linux.
_SEVERAL_MACHINES = 'RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER'


def prepare(address: str | None) -> None:
  """Has Ray ask for a token; what the user has set stays.

  Args:
    address: Address of the cluster to join; None: one will be started here, on
      the loopback address, and gets a token of its own.

  Raises:
    ValueError: Nothing says how to join the cluster, or Ray is imported
      already, with other settings.
  """
  ray = sys.modules.get('ray')
  if ray is not None and ray.is_initialized():
    return  # The user has connected it.
  mode = os.environ.get(_MODE)
  if address is not None:
    if mode is None:
      raise ValueError(
          f'the Ray cluster at {address} would run the code of whoever reaches '
          f'it: start it with {_MODE}=token and {_TOKEN}=SECRET, and set both '
          f'here. {_MODE}=disabled joins one without a token.'
      )
    if mode == 'disabled':
      logging.warning(
          'The Ray cluster at %s asks for no token: whoever reaches it can run '
          'code here and see what clients say.', address
      )
    return
  needed = {_SEVERAL_MACHINES: '0'}
  if mode is None:
    needed |= {_MODE: 'token', _TOKEN: secrets.token_hex(32)}
  if ray is not None and not needed.items() <= os.environ.items():
    raise ValueError(
        'Ray was imported before it got a token: import it later than a '
        f'context is built, or set {_MODE}=token, {_TOKEN} and '
        f'{_SEVERAL_MACHINES}=0.'
    )
  os.environ.update(needed)
