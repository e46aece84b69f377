"""Tests of the token of a Ray cluster; Ray itself: ray_cluster_test."""

import os
import sys
from unittest import mock

from absl.testing import absltest

from tff_asr.execution import ray_cluster

_ADDRESS = '192.0.2.1:6379'


class RayTokenTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith('RAY_')
    }
    self.enterContext(mock.patch.dict(os.environ, environment, clear=True))
    self.enterContext(mock.patch.dict(sys.modules))
    sys.modules.pop('ray', None)

  def test_each_program_has_its_own_token(self):
    tokens = set()
    for _ in range(2):
      with mock.patch.dict(os.environ):
        ray_cluster.require_token(None)
        self.assertEqual(os.environ['RAY_AUTH_MODE'], 'token')
        tokens.add(os.environ['RAY_AUTH_TOKEN'])
        # For a further context of the program it stays.
        before = dict(os.environ)
        ray_cluster.require_token(None)
        self.assertEqual(dict(os.environ), before)
    self.assertLen(tokens, 2)
    self.assertEqual({len(token) for token in tokens}, {64})

  def test_a_cluster_without_a_token_is_not_joined_by_mistake(self):
    settings = ray_cluster.Settings(address=_ADDRESS)
    with self.assertRaisesRegex(ValueError, f'{_ADDRESS} would run the code'):
      ray_cluster.require_token(settings.address)
    self.assertNotIn('RAY_AUTH_TOKEN', os.environ)
    os.environ['RAY_AUTH_MODE'] = 'disabled'
    with self.assertLogs('absl', 'WARNING') as logs:
      ray_cluster.require_token(settings.address)
    self.assertRegex(logs.output[0], f'{_ADDRESS} requires no token')

  def test_settings_of_the_user_are_kept(self):
    chosen = {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN_PATH': '/token'}
    os.environ.update(chosen)
    before = dict(os.environ)
    ray_cluster.require_token(_ADDRESS)
    self.assertEqual(dict(os.environ), before)
    ray_cluster.require_token(None)
    # Has Ray listen on the loopback address.
    before['RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER'] = '0'
    self.assertEqual(dict(os.environ), before)

  def test_a_token_set_too_late_is_reported(self):
    ray = mock.Mock(**{'is_initialized.return_value': False})
    sys.modules['ray'] = ray
    for chosen in ({}, {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': 'x'}):
      os.environ.update(chosen)
      with self.assertRaisesRegex(ValueError, 'imported before it got a token'):
        ray_cluster.require_token(None)
      for name in chosen:
        del os.environ[name]
    ray.is_initialized.return_value = True
    ray_cluster.require_token(None)
    self.assertNotIn('RAY_AUTH_MODE', os.environ)
