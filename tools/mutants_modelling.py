"""Bugs of features, models, optimizers and metrics."""

from tools import mutant

_FEATURES = (
    mutant.Mutant(
        'features are normalised by the sample variance',
        'tff_asr/features/log_mel.py',
        ((
            'variance = total(tf.square(centred)) / count\n',
            'variance = total(tf.square(centred)) / (count - 1.0)\n',
        ),),
        ('tests/features/log_mel_test.py',),
    ),
    mutant.Mutant(
        'padded frames count in the mean of the features',
        'tff_asr/features/log_mel.py',
        ((
            'tf.cast(feature_lengths * features.shape[-1], tf.float32)',
            'tf.cast(0 * feature_lengths + size * features.shape[-1],'
            ' tf.float32)',
        ),),
        ('tests/features/log_mel_test.py',),
    ),
    mutant.Mutant(
        'one frame too few of a waveform',
        'tff_asr/features/log_mel.py',
        (('frames = 1 + (num_samples', 'frames = (num_samples'),),
        ('tests/features/log_mel_test.py',),
    ),
    mutant.Mutant(
        'a time mask may begin at the end of the utterance',
        'tff_asr/features/spec_augment.py',
        ((
            'scaled(start_seed, lengths[:, tf.newaxis] - widths + 1)',
            'scaled(start_seed, lengths[:, tf.newaxis] + 0 * widths + 1)',
        ),),
        ('tests/features/spec_augment_test.py',),
    ),
    mutant.Mutant(
        'time masks fall on the padding of a batch',
        'tff_asr/features/spec_augment.py',
        ((
            'size, feature_lengths, num_time_masks, time_limits, time_seed',
            'size, tf.fill([batch_size], size), num_time_masks, time_limits,'
            ' time_seed',
        ),),
        ('tests/features/spec_augment_test.py',),
    ),
    mutant.Mutant(
        'all utterances of a batch share their masks',
        'tff_asr/features/spec_augment.py',
        ((
            'shape = [tf.size(lengths), num_masks]',
            'shape = [1, num_masks]',
        ),),
        ('tests/features/spec_augment_test.py',),
    ),
)

_MODELS = (
    mutant.Mutant(
        'attention masks padded queries in place of padded keys',
        'tff_asr/models/attention.py',
        ((
            '(1 - tf.transpose(valid, [0, 2, 1])[:, tf.newaxis])',
            '(1 - valid[:, tf.newaxis])',
        ),),
        ('tests/models/attention_test.py',),
    ),
    mutant.Mutant(
        'attention scores are scaled by the whole width',
        'tff_asr/models/attention.py',
        (('1 / math.sqrt(head_dim)', '1 / math.sqrt(dim)'),),
        ('tests/models/attention_test.py',),
    ),
    mutant.Mutant(
        'subsampled lengths are rounded up',
        'tff_asr/models/subsampling.py',
        ((
            'return feature_lengths // STRIDE',
            'return (feature_lengths + STRIDE - 1) // STRIDE',
        ),),
        ('tests/models/subsampling_test.py',),
    ),
    mutant.Mutant(
        'the convolution sees one frame more of the past',
        'tff_asr/models/subsampling.py',
        ((
            '_PAD_LEFT = (KERNEL_SIZE - STRIDE) // 2',
            '_PAD_LEFT = (KERNEL_SIZE - STRIDE) // 2 + 1',
        ),),
        ('tests/models/subsampling_test.py',),
    ),
    mutant.Mutant(
        "padding's bias enters the convolution",
        'tff_asr/models/subsampling.py',
        (('  scaled *= valid\n', ''),),
        ('tests/models/subsampling_test.py',),
    ),
    mutant.Mutant(
        'positions are centred half a frame late',
        'tff_asr/models/positions.py',
        ((
            '(tf.cast(lengths, tf.float32) - 1) / 2',
            'tf.cast(lengths, tf.float32) / 2',
        ),),
        ('tests/models/positions_test.py',),
    ),
    mutant.Mutant(
        'every block draws from the same seed',
        'tff_asr/models/transformer.py',
        (('          seed=block_seed,\n', '          seed=block_seeds[0],\n'),),
        ('tests/models/transformer_test.py',),
    ),
    mutant.Mutant(
        'layer drop keeps what it should drop',
        'tff_asr/models/transformer.py',
        (('drop_seed) >= layer_drop', 'drop_seed) < layer_drop'),),
        ('tests/models/transformer_test.py',),
    ),
    mutant.Mutant(
        "a block's MLP reads what its attention read",
        'tff_asr/models/transformer.py',
        ((
            'return hidden + mlp(ln2(hidden))',
            'return hidden + mlp(ln2(inputs))',
        ),),
        ('tests/models/transformer_test.py', 'tests/models/ctc_test.py'),
    ),
    mutant.Mutant(
        'the CTC loss takes the first output for the blank',
        'tff_asr/models/ctc.py',
        ((
            'checks.one_of(LOSS_KERNELS, kernel=kernel)\n'
            '  blank = logits.shape[-1] - 1\n',
            'checks.one_of(LOSS_KERNELS, kernel=kernel)\n  blank = 0\n',
        ),),
        ('tests/models/ctc_test.py',),
    ),
    mutant.Mutant(
        'greedy decoding keeps blanks',
        'tff_asr/models/ctc.py',
        ((
            'is_new = tf.not_equal(best, previous) & '
            'tf.not_equal(best, blank)',
            'is_new = tf.not_equal(best, previous)',
        ),),
        ('tests/models/ctc_test.py',),
    ),
    mutant.Mutant(
        'two equal labels need no blank between them',
        'tff_asr/text/alignment.py',
        (('return label_lengths + repeats', 'return label_lengths'),),
        ('tests/text/alignment_test.py',),
    ),
)

_OPTIMIZERS = (
    mutant.Mutant(
        'LAMB does not correct the bias of its second moment',
        'tff_asr/optimizers/moments.py',
        ((
            "correction_2 = 1 - tf.pow(beta_2, scalars['step'])",
            "correction_2 = tf.ones_like(scalars['step'])",
        ),),
        ('tests/optimizers/lamb_test.py',),
    ),
    mutant.Mutant(
        "LAMB's step number begins at 2",
        'tff_asr/optimizers/per_tensor.py',
        (("step = state['step'] + 1", "step = state['step'] + 2"),),
        ('tests/optimizers/lamb_test.py',),
    ),
    mutant.Mutant(
        'LAMB decays weights outside of its ratio',
        'tff_asr/optimizers/lamb.py',
        ((
            "    direction += scalars['weight_decay'] * weight\n"
            '    ratio = trust_ratio.trust_ratio(weight, direction)\n',
            '    ratio = trust_ratio.trust_ratio(weight, direction)\n'
            "    direction += scalars['weight_decay'] * weight\n",
        ),),
        ('tests/optimizers/lamb_test.py',),
    ),
    mutant.Mutant(
        'the trust ratio is upside down',
        'tff_asr/optimizers/trust_ratio.py',
        ((
            'coefficient * weight_norm / divisor,',
            'divisor / tf.maximum(weight_norm, 1e-30),',
        ),),
        ('tests/optimizers/trust_ratio_test.py',),
    ),
    mutant.Mutant(
        'the trust ratio of a zero tensor is 0',
        'tff_asr/optimizers/trust_ratio.py',
        ((
            'divisor, tf.ones_like(weight_norm)',
            'divisor, tf.zeros_like(weight_norm)',
        ),),
        ('tests/optimizers/trust_ratio_test.py',),
    ),
    mutant.Mutant(
        'exponential decay begins a round early',
        'tff_asr/optimizers/schedules.py',
        ((
            'tf.cast(round_num, tf.float32) - start, 0.0)',
            'tf.cast(round_num, tf.float32) - start + 1.0, 0.0)',
        ),),
        ('tests/optimizers/schedules_test.py',),
    ),
    mutant.Mutant(
        'warm-up begins at 0',
        'tff_asr/optimizers/schedules.py',
        ((
            '(tf.cast(round_num, tf.float32) + 1.0) / rounds',
            'tf.cast(round_num, tf.float32) / rounds',
        ),),
        ('tests/optimizers/schedules_test.py',),
    ),
)

_METRICS = (
    mutant.Mutant(
        'insertions count as words of the reference',
        'tff_asr/metrics/word_errors.py',
        ((
            'counts.hits + counts.substitutions + counts.deletions',
            'counts.hits + counts.substitutions + counts.deletions +'
            ' counts.insertions',
        ),),
        ('tests/metrics/word_errors_test.py',),
    ),
    mutant.Mutant(
        'deleted words are left out of the denominator',
        'tff_asr/metrics/word_errors.py',
        ((
            'counts.hits + counts.substitutions + counts.deletions',
            'counts.hits + counts.substitutions',
        ),),
        ('tests/metrics/word_errors_test.py',),
    ),
    mutant.Mutant(
        'the bootstrap draws the two systems apart',
        'tff_asr/metrics/bootstrap.py',
        ((
            '    sums[part] = gaps[drawn].sum(axis=1)\n',
            '    apart = generator.permuted(drawn, axis=0)\n'
            '    gaps_drawn = np.asarray(errors, np.float64)[drawn] - (\n'
            '        np.asarray(baseline_errors, np.float64)[apart]\n'
            '    )\n'
            '    sums[part] = gaps_drawn.sum(axis=1)\n',
        ),),
        ('tests/metrics/bootstrap_test.py',),
    ),
    mutant.Mutant(
        'word error rates are resampled by utterances, not by speakers',
        'tff_asr/programs/evaluation.py',
        ((
            'errors[hypothesis.client_id] = errors.get(\n'
            '          hypothesis.client_id, word_errors.WordErrors()\n',
            'errors[hypothesis.utterance_id] = errors.get(\n'
            '          hypothesis.utterance_id, word_errors.WordErrors()\n',
        ),),
        ('tests/programs/evaluation_test.py',),
    ),
)

MUTANTS = (*_FEATURES, *_MODELS, *_OPTIMIZERS, *_METRICS)
