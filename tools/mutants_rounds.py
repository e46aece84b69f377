"""Bugs of what a round may be told to do: clips, local work, measurements."""

from tools import mutant

MUTANTS = (
    mutant.Mutant(
        'rescaling leaves small layers as they are and clips the rest',
        'tff_asr/privacy/clipping.py',
        ((
            'is_scaled = is_over & (norm > 0)',
            'is_scaled = is_over & (norm > layer_clip)',
        ),),
        ('tests/privacy/queries_test.py',),
    ),
    mutant.Mutant(
        'rescaling scales layers of updates within the clip, too',
        'tff_asr/privacy/clipping.py',
        (('is_scaled = is_over & (norm > 0)', 'is_scaled = norm > 0'),),
        ('tests/privacy/queries_test.py',),
    ),
    mutant.Mutant(
        'weighted shares are not brought back to C',
        'tff_asr/privacy/clipping.py',
        (('[share / norm for share in weighted]', 'weighted'),),
        ('tests/privacy/clipping_test.py',),
    ),
    mutant.Mutant(
        'each tensor of a module gets the clip of the module',
        'tff_asr/privacy/clipping.py',
        ((
            '    for place in layer.indices:\n      result[place] = factor\n',
            '    for place in layer.indices:\n'
            '      result[place] = (\n'
            '          factor\n'
            '          if is_over is not None\n'
            '          else _factor(squared_norms[place], layer_clip)\n'
            '      )\n',
        ),),
        ('tests/privacy/queries_test.py',),
    ),
    mutant.Mutant(
        "the counts' noise is paid for by nobody",
        'tff_asr/privacy/adaptive_query.py',
        (('1 / math.sqrt(1 - self.count_noise_ratio**-2)', '1.0'),),
        ('tests/privacy/adaptive_query_test.py',),
    ),
    mutant.Mutant(
        'the counts have the sensitivity of one layer',
        'tff_asr/privacy/adaptive_query.py',
        (('math.sqrt(num_clips) / 2', '1 / 2'),),
        ('tests/privacy/adaptive_query_test.py',),
    ),
    mutant.Mutant(
        'clips move away from the quantile',
        'tff_asr/privacy/adaptive_query.py',
        (('tf.exp(-step)', 'tf.exp(step)'),),
        ('tests/privacy/adaptive_query_test.py',),
    ),
    mutant.Mutant(
        'the noise stays at the first clip',
        'tff_asr/privacy/adaptive_query.py',
        (('        l2_norm_clip=_whole(layer_clips),\n', ''),),
        ('tests/privacy/adaptive_query_test.py',),
    ),
    mutant.Mutant(
        'clips of the next round are reported for this one',
        'tff_asr/aggregators/dp_mean.py',
        ((
            'tff.federated_map(describe, state.query_state)',
            'tff.federated_map(describe, output.state.query_state)',
        ),),
        ('tests/aggregators/adaptive_mean_test.py',),
    ),
    mutant.Mutant(
        'the norm of the sum is taken for that of the mean',
        'tff_asr/aggregators/measured_sum.py',
        ((
            'signal_norm=tf.linalg.global_norm(layers) / self._divisor',
            'signal_norm=tf.linalg.global_norm(layers)',
        ),),
        ('tests/aggregators/dp_mean_test.py::ExecutionTest',),
    ),
    mutant.Mutant(
        'updates that are not finite count as unclipped ones',
        'tff_asr/privacy/queries.py',
        ((
            'lambda value, zero: tf.where(is_finite, value, zero)',
            'lambda value, zero: value',
        ),),
        ('tests/aggregators/dp_mean_test.py::ExecutionTest',),
    ),
    mutant.Mutant(
        'the proximal term is added after the clip',
        'tff_asr/learning/client_update.py',
        (
            (
                '  if proximal_weight > 0:\n',
                '  proximal = lambda gradients: gradients\n'
                '  if proximal_weight > 0:\n',
            ),
            (
                '    gradients = tf.nest.map_structure(\n'
                '        lambda gradient, weight, start: (\n'
                '            gradient + proximal_weight * (weight - start)\n'
                '        ),\n'
                '        gradients,\n'
                '        weights_lib.without(frozen, weights),\n'
                '        weights_lib.without(frozen, anchor),\n'
                '    )\n',
                '    proximal = lambda gradients: tf.nest.map_structure(\n'
                '        lambda gradient, weight, start: (\n'
                '            gradient + proximal_weight * (weight - start)\n'
                '        ),\n'
                '        gradients,\n'
                '        weights_lib.without(frozen, weights),\n'
                '        weights_lib.without(frozen, anchor),\n'
                '    )\n',
            ),
            (
                '  return clip(gradients, max_norm=max_grad_norm), loss_sum\n',
                '  clipped = clip(gradients, max_norm=max_grad_norm)\n'
                '  return proximal(clipped), loss_sum\n',
            ),
        ),
        ('tests/learning/client_update_test.py',),
    ),
    mutant.Mutant(
        'the proximal term pulls to the last step, not to the broadcast',
        'tff_asr/learning/client_update.py',
        (('            anchor=initial,\n', '            anchor=weights,\n'),),
        ('tests/learning/fed_avg_test.py::PlainFederatedAverageTest',),
    ),
    mutant.Mutant(
        'the loss before training is that of the last batch',
        'tff_asr/learning/client_update.py',
        ((
            'first_loss = tf.where(is_first, last_loss, first_loss)',
            'first_loss = last_loss',
        ),),
        ('tests/learning/fed_avg_test.py::PlainFederatedAverageTest',),
    ),
    mutant.Mutant(
        'exact measurements of clipping are named as if they were private',
        'tff_asr/programs/round_metrics.py',
        (("r'client_work/|aggregator/not_private/'", "r'client_work/'"),),
        ('tests/programs/round_metrics_test.py',),
    ),
    mutant.Mutant(
        'a delta is normalised by its squared norm',
        'tff_asr/learning/delta_transforms.py',
        (('divide_no_nan(norm, found)', 'divide_no_nan(norm, found**2)'),),
        ('tests/learning/delta_transforms_test.py',),
    ),
)
