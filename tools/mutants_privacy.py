"""Bugs of clipping, noise, accounting and the ledger."""

from tools import mutant

_PRIVACY = (
    mutant.Mutant(
        'the sum is divided by the clients that came',
        'tff_asr/aggregators/dp_mean.py',
        ((
            'denominator=self._cohort_size), record_sum\n',
            'denominator=1.0),\n'
            '        tff.aggregators.UnweightedMeanFactory(),\n',
        ),),
        ('tests/aggregators/dp_mean_test.py::ExecutionTest',),
    ),
    mutant.Mutant(
        'the noised sum is clipped again',
        'tff_asr/privacy/queries.py',
        ((
            '    return tf.nest.pack_sequence_as(sample_state, layers),'
            ' new_state, event\n',
            '    clipped = self.preprocess_record(\n'
            '        global_state.l2_norm_clip,\n'
            '        tf.nest.pack_sequence_as(sample_state, layers),\n'
            '    )\n'
            '    return clipped, new_state, event\n',
        ),),
        (
            'tests/privacy/queries_test.py',
            'tests/privacy/queries_noise_test.py',
        ),
    ),
    mutant.Mutant(
        'every client adds the noise, and the server once more',
        'tff_asr/privacy/queries.py',
        ((
            '    measured = _measure(squared_norms, factors, layers=layers)\n',
            '    if self._noise_multiplier > 0:\n'
            '      stddev = self._noise_multiplier\n'
            '      stddev *= tf.cast(clip, tf.float32)\n'
            '      clipped = [\n'
            '          layer + stddev * tf.random.normal(tf.shape(layer))\n'
            '          for layer in clipped\n'
            '      ]\n'
            '    measured = _measure(squared_norms, factors, layers=layers)\n',
        ),),
        (
            'tests/privacy/queries_noise_test.py',
            'tests/aggregators/dp_mean_test.py::ExecutionTest',
        ),
    ),
    mutant.Mutant(
        'the noise does not scale with the clip',
        'tff_asr/privacy/queries.py',
        ((
            'stddev = global_state.noise_multiplier * '
            'global_state.l2_norm_clip\n',
            'stddev = global_state.noise_multiplier\n',
        ),),
        ('tests/privacy/queries_noise_test.py',),
    ),
    mutant.Mutant(
        'layers share their noise',
        'tff_asr/privacy/queries.py',
        (('    start += shape.num_elements()\n', ''),),
        ('tests/privacy/queries_noise_test.py',),
    ),
    mutant.Mutant(
        'rounds share their noise',
        'tff_asr/privacy/queries.py',
        ((
            'global_state._replace(counter=global_state.counter + 1)',
            'global_state._replace(counter=global_state.counter + 0)',
        ),),
        ('tests/privacy/queries_noise_test.py',),
    ),
    mutant.Mutant(
        'noise without a key is drawn all the same',
        'tff_asr/privacy/queries.py',
        (('tf.where(is_keyed, stddev, math.nan)', 'tf.identity(stddev)'),),
        ('tests/privacy/queries_noise_test.py',),
    ),
    mutant.Mutant(
        'the last layer is not clipped',
        'tff_asr/privacy/queries.py',
        ((
            '        tensors,\n        factors,\n',
            '        tensors,\n'
            '        [*factors[:-1], tf.ones([], tf.float64)],\n',
        ),),
        ('tests/privacy/queries_test.py',),
    ),
    mutant.Mutant(
        'C is split over one layer too few',
        'tff_asr/privacy/clipping.py',
        ((
            '[1 / math.sqrt(len(sizes))]',
            '[1 / math.sqrt(max(len(sizes) - 1, 1))]',
        ),),
        ('tests/privacy/clipping_test.py',),
    ),
    mutant.Mutant(
        "C is split by the layers' sizes without the root",
        'tff_asr/privacy/clipping.py',
        (('[math.sqrt(size / total)', '[(size / total)'),),
        ('tests/privacy/clipping_test.py',),
    ),
    mutant.Mutant(
        'the uniform and the dim split are exchanged',
        'tff_asr/privacy/clipping.py',
        ((
            "'uniform': uniform_split, 'dim': dim_split,",
            "'uniform': dim_split, 'dim': uniform_split,",
        ),),
        ('tests/privacy/clipping_test.py',),
    ),
    mutant.Mutant(
        'an update that is not finite reaches the sum',
        'tff_asr/privacy/queries.py',
        ((
            'is_finite = tf.math.is_finite(tf.add_n(squared_norms))',
            'is_finite = tf.constant(True)',
        ),),
        ('tests/privacy/queries_test.py',),
    ),
    mutant.Mutant(
        'fixed cohorts are accounted with half their sensitivity',
        'tff_asr/privacy/accounting.py',
        ((
            'sensitivity = 2.0 if relation is _REPLACE_ONE else 1.0',
            'sensitivity = 1.0',
        ),),
        ('tests/privacy/accounting_test.py',),
    ),
    mutant.Mutant(
        'noise on the mean is converted by the root of the cohort',
        'tff_asr/privacy/noise.py',
        ((
            "'mean': cohort_size, 'client'",
            "'mean': math.sqrt(cohort_size), 'client'",
        ),),
        ('tests/privacy/noise_test.py',),
    ),
    mutant.Mutant(
        'a repeated round is charged without a look at the ledger',
        'tff_asr/privacy/ledger.py',
        ((
            'ahead = self._lines[self._position + 1 :]\n    for line',
            'ahead = self._lines[:0]\n    for line',
        ),),
        ('tests/privacy/ledger_test.py',),
    ),
)

MUTANTS = _PRIVACY
